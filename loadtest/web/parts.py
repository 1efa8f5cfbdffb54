"""The names of the benchmark's parts, in their order. Apart from what runs them: help reads them."""

from typing import Final

# Parts whose ratios are asked for: measured round after round, for a machine is not the same from minute to minute.
RATES: Final = ("raw", "sse", "coalesced", "websocket", "two-fronts")
NAMES: Final = (
    *RATES,
    "steady",
    "late",
    "setup",
    "idle",
    "memory-http1",
    "memory-http2",
    "memory-websocket",
    "stalled",
)
LONG: Final = ("stalled",)  # only measured where it is asked for
