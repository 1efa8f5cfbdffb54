"""What the gateway counts: times, tokens and endings of all requests. Numbers only; `metrics` puts names to them."""

from collections import Counter
from typing import Final

from msgspec import Struct

from .histogram import Histogram

# Seconds. A small model answers its first token in milliseconds, a large one on a CPU in a minute; the ratios between
# neighbours (2 to 2.5) keep the error of a quantile read from a bucket below that of the next measurement.
FIRST_TOKEN_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
BETWEEN_TOKENS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
REQUEST_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot of the counters."""

    live: int  # accepted and unfinished
    accepted: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finished: dict[str, int]  # by reason; `error` for Failed
    refused: dict[str, int]  # by error code, before or after acceptance


class Accounts:
    """The gateway's counters and histograms; everything since the start."""

    def __init__(self) -> None:
        self.accepted = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.text_seconds = 0.0  # in the detokenizer and what it writes to sockets
        self.finished: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.queue_time = Histogram(FIRST_TOKEN_BOUNDS)
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.between_tokens = Histogram(BETWEEN_TOKENS_BOUNDS)
        self.request_time = Histogram(REQUEST_BOUNDS)

    def statistics(self, live: int) -> GatewayStatistics:
        return GatewayStatistics(
            live=live,
            accepted=self.accepted,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            finished=dict(self.finished),
            refused=dict(self.refused),
        )
