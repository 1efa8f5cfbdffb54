"""Results for a server. A part that could not be measured holds the reason and never counts as good."""

from msgspec import Struct

from .client import ChatStream


class NotMeasurable(Struct, frozen=True, kw_only=True, tag="not measurable"):
    because: str
    ran_at_once: int | None = None  # streams, if the server ran fewer than requested


class Leaving(Struct, frozen=True, kw_only=True, tag="leaving"):
    """Time from the clients' closing of their sockets until the engine stopped working for them."""

    streams: int
    seconds: float | None  # None: not within the patience
    patience: float
    seen_by: str


class SlowReaders(Struct, frozen=True, kw_only=True, tag="slow readers"):
    """Clients that ask for long answers and do not read. `probe_seconds`: answer time of an honest client meanwhile, if
    answered; `probes_failed` of its `probes` got no answer or an incomplete one.
    """

    readers: int
    grown_bytes_each: float
    probe_alone_seconds: float | None
    probe_seconds: float | None
    probes: int = 0
    probes_failed: int = 0


class Isolation(Struct, frozen=True, kw_only=True, tag="isolation"):
    """An honest client alone, and during a flood. Medians; None: no answer at all."""

    flood_streams: int
    separate_keys: bool
    flood_answered: int
    flood_refused: int
    first_token_alone: float | None
    first_token_flooded: float | None
    gap_alone: float | None
    gap_flooded: float | None
    probes_failed: int


class WorkerDeath(Struct, frozen=True, kw_only=True, tag="worker death"):
    """After `kill -9` of the server's largest child."""

    streams: int
    went_on: int  # finished normally
    told: int  # ended with an error event
    cut: int  # ended without a terminal event
    recovered_seconds: float | None  # until a new request was answered; None: not within the patience
    patience: float


class Drained(Struct, frozen=True, kw_only=True, tag="drain"):
    """After SIGTERM, with streams under way."""

    streams: int
    finished: int
    told: int
    cut: int
    exit_seconds: float | None  # None: not within the patience
    exit_code: int | None
    patience: float


Result = NotMeasurable | Leaving | SlowReaders | Isolation | WorkerDeath | Drained


class Tally(Struct, kw_only=True):
    """How the streams of all parts ended, except those that the client itself left."""

    done: int = 0
    error_events: int = 0
    without: int = 0  # ended only by the connection's close

    def count(self, *streams: ChatStream) -> None:
        for stream in streams:
            self.done += stream.end == "done"
            self.error_events += stream.end == "error event"
            self.without += stream.end == "no terminal event" and bool(stream.token_times)

    @property
    def begun(self) -> int:
        return self.done + self.error_events + self.without


class BehaviourReport(Struct, kw_only=True):
    """Of one server."""

    name: str
    url: str
    command: str | None
    results: dict[str, Result]
    tally: Tally
