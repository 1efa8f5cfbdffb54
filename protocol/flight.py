"""What the flight recorder keeps of the last minutes, and the whole report that `triolet doctor` prints.

No text and no token of a request is in it: numbers, and this server's own words. The recorder appends plain tuples of
the same shape, as a Struct takes three times as long to make. `at` is the time of the scheduler's clock.
"""

from msgspec import Struct

from .engine_view import AboutEngine
from .reports import Health, Ledger, ServerReport


class StepSent(Struct, frozen=True, array_like=True, tag="sent"):
    """A step on its way to the worker, and why the first choice that got nothing of it waits: `need` of `free`."""

    step: int
    at: float
    sequences: int
    tokens: int
    prefill_tokens: int = 0  # of them: of prompts, and recomputed ones
    new: int = 0  # sequences that the worker did not know
    preempted: int = 0
    waiting: int = 0
    blocked: str = ""  # an `Obstacle`
    need: int = 0
    free: int = 0


class StepBack(Struct, frozen=True, array_like=True, tag="back"):
    """The step came back; `link` are the seconds that it spent outside the worker."""

    step: int
    at: float
    duration: float
    link: float


class FlightEvent(Struct, frozen=True, array_like=True, tag="event"):
    """Of the worker, of health, of refusals, of convicted requests."""

    at: float
    kind: str
    text: str


class FlightMinute(Struct, frozen=True, array_like=True, tag="minute"):
    """Steps that came back in the minute before `at`, their seconds in the worker, and tokens."""

    at: float
    steps: int
    seconds: float
    tokens: int


class FlightBegan(Struct, frozen=True, array_like=True, tag="began"):
    """The first line of a file: the Unix time that belongs to `at`."""

    at: float
    wall: float
    pid: int
    version: str


Record = StepSent | StepBack | FlightEvent | FlightMinute | FlightBegan


class FlightRecording(Struct, frozen=True, kw_only=True):
    """The flight recorder of one model's scheduler. `tasks`: of its process, if that is not the web's."""

    now: float
    records: list[Record]
    tasks: list[str] = []


class DoctorReport(Struct, frozen=True, kw_only=True):
    """The answer of /internal/doctor; `reports` and `recordings` by the names of the loaded models."""

    version: str
    wall: float  # Unix time
    health: Health
    about: AboutEngine | None = None
    ledger: Ledger | None = None
    reports: dict[str, ServerReport] = {}
    recordings: dict[str, FlightRecording]
    tasks: list[str] = []
