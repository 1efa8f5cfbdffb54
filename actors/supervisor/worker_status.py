"""The state of the worker as the front knows it, and whether it is healthy. It has no clock: callers pass the time.

Health is judged by progress. A worker must send something within `SILENCE_LIMIT`: step answers while it computes, pongs
otherwise (its socket is read while a step runs). And a step must end within a limit that grows with the slowest step so
far: a long prefill on a slow machine is healthy, a hung kernel is not.
"""

from collections.abc import Callable
from typing import Final

from ...protocol.reports import Health, WorkerState
from ...protocol.steps import Ready
from ..histogram import Histogram

PING_INTERVAL: Final = 0.5  # seconds without a message to the worker before it is pinged
SILENCE_LIMIT: Final = 1.5  # seconds; with the ping, a stopped worker is noticed within 2 s
KILL_AFTER: Final = 60.0  # seconds of silence: it will not come back; a new one takes over its streams
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
        self.on_change: Callable[[], None] = lambda: None  # called after each change of `state`
        self.step_time = Histogram(STEP_BOUNDS)
        self.link_seconds = 0.0  # time of steps outside the worker, counted from when it could run them
        self._heard = 0.0
        self._steps: dict[int, float] = {}  # in flight: when they were sent, oldest first
        self._oldest_since = 0.0  # the earliest time at which the oldest of them can have begun
        self._slowest = 0.0

    def begin(self, pid: int) -> None:
        self.pid = pid

    def set_ready(self, ready: Ready, now: float) -> None:
        self.state, self.reason, self.ready = "ready", "", ready
        self._heard = now
        self.on_change()

    def lose(self, state: WorkerState, reason: str) -> None:
        self.state, self.reason, self.pid = state, reason, None
        self._steps.clear()
        self.on_change()

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

    def must_be_killed(self, now: float) -> str | None:
        """Why waiting any longer is useless; None if it is not."""
        if self.silence(now) > KILL_AFTER:
            return f"it has said nothing for {self.silence(now):.0f} s"
        if self.step_age(now) > _STEP_KILL_FACTOR * self.step_limit:
            return f"one step has been running for {self.step_age(now):.0f} s"
        return None

    def health(self, now: float) -> Health:
        if self.state != "ready":
            return Health(ready=False, status=self.state, reason=self.reason)
        if self.silence(now) > SILENCE_LIMIT:
            reason = f"the worker process has not answered for {self.silence(now):.1f} s"
            return Health(ready=False, status="silent", reason=reason)
        if self.step_age(now) > self.step_limit:
            reason = f"a step has been running for {self.step_age(now):.1f} s; the slowest took {self._slowest:.1f} s"
            return Health(ready=False, status="stuck", reason=reason)
        return Health(ready=True, status="ready", reason="")
