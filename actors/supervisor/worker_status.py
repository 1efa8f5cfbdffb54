"""The state of the worker as the front knows it, and whether it is healthy. It has no clock: callers pass the time.

Health is judged by progress. A worker must send something within `SILENCE_LIMIT`: step answers while it computes, pongs
otherwise (its socket is read while a step runs). And a step must move: on a CPU pongs say how far it is, and everywhere
it has a time limit, by what steps of its size have taken (step_cost.py). A long prefill on a slow machine is healthy, a
hung kernel is not.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from ...protocol.reports import Health, Loading, WorkerState
from ...protocol.settings import HANG_SECONDS
from ...protocol.steps import LoadProgress, Ready, Step
from ..flight import Flight
from ..histogram import Histogram
from .loading import LoadWatch, in_words
from .step_cost import StepCost, work_of

PING_INTERVAL: Final = 0.5  # seconds without a message to the worker before it is pinged
SILENCE_LIMIT: Final = 1.5  # seconds; with the ping, a stopped worker is noticed within 2 s
# Seconds of silence: it will not come back; a new one takes over its streams. Its reader answers while it computes, but
# compiling holds the GIL, for some ten seconds on a busy machine.
KILL_AFTER: Final = 30.0
STALL_LIMIT: Final = 1.0  # seconds without progress; with two pings, a step that hangs is noticed within 2 s
_DOUBTED: Final = 3.0  # times what a step is predicted to take, without progress: health says so
_GIVEN_UP: Final = 10.0  # the same: its worker is replaced
_FIRST_STEP: Final = 3.0  # seconds that the first one is predicted to take

# Seconds of one step: from a small model's decode step on a CPU to a full prefill step of a large one.
STEP_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class WorkerStatus:
    """The state of the worker, updated by the supervisor."""

    def __init__(self, hang_seconds: float = HANG_SECONDS, flight: Flight | None = None) -> None:
        """A worker whose step makes no progress for so long is replaced.

        It gets longer if a step of its size may take long, and at least the time that the next worker would need: so
        waiting never costs more than twice what knowing the future would.
        """
        self.state: WorkerState = "loading"
        self.reason = "the model is being loaded"
        self.ready: Ready | None = None
        self.pid: int | None = None
        self.restarts = 0
        self.loading: Loading | None = None  # while a worker loads
        self.changes = 0  # of `state` and `loading`
        self.on_change: set[Callable[[], None]] = set()  # called after each of them
        self.step_time = Histogram(STEP_BOUNDS)
        self.link_seconds = 0.0  # time of steps outside the worker, counted from when it could run them
        self._flight = flight or Flight()
        self._hang_seconds = hang_seconds
        self._began = 0.0  # to load
        self._load_seconds = inf  # the fastest so far: the first load may have compiled kernels
        self._heard = 0.0
        self._steps: dict[int, Step] = {}  # in flight, oldest first
        self._oldest_since = 0.0  # the earliest time at which the oldest of them can have begun
        self._progress = 0  # as the worker last said
        self._moved = 0.0  # when it last said something new
        self._longest_gap = 0.0  # between two of these, in one step
        self._cost = StepCost()
        self._load = LoadWatch()

    def begin(self, pid: int, now: float) -> None:
        """A worker was started, and loads the model."""
        self.pid = pid
        self._began = now
        self.loading = self._load.begin(now)
        self._changed()

    def progress(self, progress: LoadProgress, now: float) -> None:
        if (loading := self._load.progress(progress, now)) is not None:
            self.loading = loading
            self._changed()

    def set_ready(self, ready: Ready, now: float) -> None:
        self.state, self.reason, self.ready, self.loading = "ready", "", ready, None
        self._heard = now
        self._load_seconds = min(self._load_seconds, now - self._began)
        self._load.end(now)
        self._changed()

    def lose(self, state: WorkerState, reason: str) -> None:
        self.state, self.reason, self.pid, self.loading = state, reason, None, None
        self._steps.clear()
        self._changed()

    def copy(self, state: WorkerState, reason: str, ready: Ready | None, loading: Loading | None, now: float) -> None:
        """Take over what another process knows."""
        self.state, self.reason, self.ready, self.loading = state, reason, ready, loading
        self._heard = now
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        for tell in tuple(self.on_change):
            tell()

    def heard(self, now: float, progress: int | None = None) -> None:
        """The worker said something; a pong says how far its step is."""
        self._heard = now
        if progress is not None and progress != self._progress:
            if self._moved > self._oldest_since:
                self._longest_gap = max(self._longest_gap, now - self._moved)
            self._progress, self._moved = progress, now

    def step_sent(self, step: Step, now: float) -> None:
        if not self._steps:
            self._oldest_since = now
        self._steps[step.step] = step

    def step_done(self, number: int, duration: float, now: float) -> None:
        step = self._steps.pop(number, None)
        link = max(0.0, now - self._oldest_since - duration)
        self.link_seconds += link
        self._flight.steps.append(("back", number, now, duration, link))
        self._oldest_since = now  # the next one begins now at the earliest
        if step is not None:
            self._cost.note(work_of(step), duration)
        self.step_time.observe(duration)

    def silence(self, now: float) -> float:
        return now - self._heard

    def step_age(self, now: float) -> float:
        """Seconds that the oldest step in flight has been running."""
        return now - self._oldest_since if self._steps else 0.0

    @property
    def stall(self) -> float:
        """Seconds for which the oldest step in flight had made no progress, when the worker was last heard.

        One that is stopped says nothing of its step: it is silent, which is another trouble.
        """
        return max(0.0, self._heard - max(self._oldest_since, self._moved)) if self._steps else 0.0

    @property
    def _predicted(self) -> float:
        """Seconds that the oldest step in flight takes at most, by what others took.

        Of steps that last for some pings it is known how long they stand still meanwhile: twice that, if it is less.
        """
        seconds = self._cost.predict(work_of(next(iter(self._steps.values()))))
        seconds = _FIRST_STEP if seconds is None else seconds
        return min(seconds, 2 * self._longest_gap) if self._longest_gap else seconds

    @property
    def trouble(self) -> str:
        """Why no worker is ready; empty while one is."""
        return f"{self.reason}: {in_words(self.loading)}" if self.loading else self.reason

    def must_be_killed(self, now: float) -> str | None:
        """Why waiting any longer is useless; None if it is not."""
        if self.silence(now) > KILL_AFTER:
            return f"it has said nothing for {self.silence(now):.0f} s"
        return f"one step has made no progress for {self.stall:.1f} s" if self.hangs else None

    @property
    def hangs(self) -> bool:
        """Whether a step is beyond hope."""
        stall = self.stall
        return stall > max(self._hang_seconds, self._load_seconds) and stall > _GIVEN_UP * self._predicted

    def health(self, now: float) -> Health:
        if self.state != "ready":
            return Health(ready=False, status=self.state, reason=self.trouble, loading=self.loading)
        if self.silence(now) > SILENCE_LIMIT:
            reason = f"the worker process has not answered for {self.silence(now):.1f} s"
            return Health(ready=False, status="silent", reason=reason)
        if (stall := self.stall) > STALL_LIMIT and stall > _DOUBTED * self._predicted:
            reason = f"a step has made no progress for {stall:.1f} s; {self._predicted:.2f} s were to be expected"
            return Health(ready=False, status="stuck", reason=reason)
        return Health(ready=True, status="ready", reason="")
