"""What was found out about a server. A part that could not be measured says why; it never counts as good."""

from msgspec import Struct

from .client import ChatStream


class NotMeasurable(Struct, frozen=True, kw_only=True, tag="not measurable"):
    because: str
    ran_at_once: int | None = None  # streams, where the server did not run as many as were wanted


class Leaving(Struct, frozen=True, kw_only=True, tag="leaving"):
    """From the moment the clients closed their sockets until the engine worked for them no more."""

    streams: int
    seconds: float | None  # None: not within the patience
    patience: float
    seen_by: str


class SlowReaders(Struct, frozen=True, kw_only=True, tag="slow readers"):
    """Clients that ask for long answers and do not read. `probe_seconds`: of an honest client beside them, where it
    was answered; `probes_failed` of its `probes` were not, or not to their end.
    """

    readers: int
    grown_bytes_each: float
    probe_alone_seconds: float | None
    probe_seconds: float | None
    probes: int = 0
    probes_failed: int = 0


class Isolation(Struct, frozen=True, kw_only=True, tag="isolation"):
    """An honest client alone, and beside one that floods. Medians; None: not one answer."""

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
    went_on: int  # to their ordinary end
    told: int  # with an error event
    cut: int  # without any terminal event
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
    """How the streams of all parts ended, those aside that the client itself left."""

    done: int = 0
    error_events: int = 0
    without: int = 0  # ended by nothing but the connection

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
