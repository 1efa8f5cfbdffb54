"""A run's settings, checked once and written into its result unchanged, except for the keys."""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from .arrivals import Arrivals
from .lengths import Distribution, Fixed
from .mix import Mix, MixShare
from .slo import Slo

Api = Literal["chat", "completions", "websocket"]

HIDDEN_KEY = "…"
TOLERANCE: Final = 0.02  # of a comparison: smaller relative differences do not matter


class LoadSettings(Struct, frozen=True, kw_only=True):
    url: str
    api: Api = "chat"
    model: str | None = None  # None: the first one the server lists
    arrivals: Arrivals | None = None  # None: a closed loop
    concurrency: int = 16  # clients of a closed loop
    seconds: float | None = None  # measured time, after the warm-up
    requests: int | None = None  # measured requests
    warmup_seconds: float = 2.0
    prompt_tokens: Distribution = Fixed(128)
    output_tokens: Distribution = Fixed(64)
    shared_prefix: MixShare = MixShare(0.0, 1.0)  # share of conversations; tokens before their first prompt
    turns: Distribution = Fixed(1)
    think_seconds: Distribution = Fixed(1)  # between an answer and the next turn
    mix: Mix = Mix()
    ignore_eos: bool = True
    temperature: float | None = None
    extra_body: dict[str, object] = {}
    timeout_seconds: float = 300.0
    stall_seconds: float = 60.0
    grace_seconds: float = 30.0  # for running requests after the last start
    max_in_flight: int = 10_000  # open loop; a request waiting for a slot has its latency from the intended start
    streams_per_socket: int = 16
    seed: int = 1
    slo: Slo = Slo()


def without_keys(settings: LoadSettings) -> LoadSettings:
    """The settings without keys, for a file that may be shared."""
    tenants = tuple(replace(each, key=each.key and HIDDEN_KEY) for each in settings.mix.tenants)
    return replace(settings, mix=replace(settings.mix, tenants=tenants))
