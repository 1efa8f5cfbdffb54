"""The state of the worker as the front knows it, and whether it is healthy. It has no clock: callers pass the time.

Health is judged by progress. A worker must send something within `SILENCE_LIMIT`: step answers while it computes, pongs
otherwise (its socket is read while a step runs). And a step must end within a limit that grows with the slowest step so
far: a long prefill on a slow machine is healthy, a hung kernel is not.
"""

from collections.abc import Callable
from typing import Final

from ...protocol.reports import Health, Loading, WorkerState
from ...protocol.steps import LoadProgress, Ready
from ..histogram import Histogram
from .loading import LoadWatch, in_words

PING_INTERVAL: Final = 0.5  # seconds without a message to the worker before it is pinged
SILENCE_LIMIT: Final = 1.5  # seconds; with the ping, a stopped worker is noticed within 2 s
# Seconds of silence: it will not come back; a new one takes over its streams. Its reader answers while it computes, but
# compiling holds the GIL, for some ten seconds on a busy machine.
KILL_AFTER: Final = 30.0
_STEP_LIMIT: Final = 10.0  # no step is suspicious before that
_STEP_FACTOR: Final = 20.0  # times the slowest step so far
_STEP_KILL_FACTOR: Final = 10.0  # a step ten times over its limit is hung; its worker is replaced

# Seconds of one step: from a small model's decode step on a CPU to a full prefill step of a large one.
STEP_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class WorkerStatus:
    """The state of the worker, updated by the supervisor."""

    def __init__(self) -> None:
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
        self._heard = 0.0
        self._steps: dict[int, float] = {}  # in flight: when they were sent, oldest first
        self._oldest_since = 0.0  # the earliest time at which the oldest of them can have begun
        self._slowest = 0.0
        self._load = LoadWatch()

    def begin(self, pid: int, now: float) -> None:
        """A worker was started, and loads the model."""
        self.pid = pid
        self.loading = self._load.begin(now)
        self._changed()

    def progress(self, progress: LoadProgress, now: float) -> None:
        if (loading := self._load.progress(progress, now)) is not None:
            self.loading = loading
            self._changed()

    def set_ready(self, ready: Ready, now: float) -> None:
        self.state, self.reason, self.ready, self.loading = "ready", "", ready, None
        self._heard = now
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

    def heard(self, now: float) -> None:
        self._heard = now

    def step_sent(self, step: int, now: float) -> None:
        if not self._steps:
            self._oldest_since = now
        self._steps[step] = now

    def step_done(self, step: int, duration: float, now: float) -> None:
        self._steps.pop(step, None)
        self.link_seconds += max(0.0, now - self._oldest_since - duration)
        self._oldest_since = now  # the next one begins now at the earliest
        self._slowest = max(self._slowest, duration)
        self.step_time.observe(duration)

    def silence(self, now: float) -> float:
        return now - self._heard

    def step_age(self, now: float) -> float:
        """Seconds that the oldest step in flight has been running."""
        return now - self._oldest_since if self._steps else 0.0

    @property
    def step_limit(self) -> float:
        return max(_STEP_LIMIT, _STEP_FACTOR * self._slowest)

    @property
    def trouble(self) -> str:
        """Why no worker is ready; empty while one is."""
        return f"{self.reason}: {in_words(self.loading)}" if self.loading else self.reason

    def must_be_killed(self, now: float) -> str | None:
        """Why waiting any longer is useless; None if it is not."""
        if self.silence(now) > KILL_AFTER:
            return f"it has said nothing for {self.silence(now):.0f} s"
        if self.step_age(now) > _STEP_KILL_FACTOR * self.step_limit:
            return f"one step has been running for {self.step_age(now):.0f} s"
        return None

    def health(self, now: float) -> Health:
        if self.state != "ready":
            return Health(ready=False, status=self.state, reason=self.trouble, loading=self.loading)
        if self.silence(now) > SILENCE_LIMIT:
            reason = f"the worker process has not answered for {self.silence(now):.1f} s"
            return Health(ready=False, status="silent", reason=reason)
        if self.step_age(now) > self.step_limit:
            reason = f"a step has been running for {self.step_age(now):.1f} s; the slowest took {self._slowest:.1f} s"
            return Health(ready=False, status="stuck", reason=reason)
        return Health(ready=True, status="ready", reason="")
