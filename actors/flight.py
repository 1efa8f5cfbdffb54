"""The flight recorder: the scheduler's last decisions and what happened to the worker, for `triolet doctor`. Pure.

Bounded by construction: STEP_RECORDS tuples of at most 12 numbers (500 bytes each) and EVENTS with a text of at most
TEXT characters are 5 MB at most. Each step appends two tuples. Everything else happens once a second (`watch`).
"""

from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Final

from ..protocol.reports import Health

STEP_RECORDS: Final = 8192  # of 4,096 steps: some minutes
EVENTS: Final = 512  # minutes included: the last hours, if little happens
TEXT: Final = 300  # characters of an event
MINUTE: Final = 60.0

StepRecord = tuple[str | int | float, ...]  # StepSent and StepBack of protocol/flight.py
EventRecord = tuple[str, float, str, str] | tuple[str, float, int, float, int]  # Event and FlightMinute


class Flight:
    """The last records of one scheduler. Whoever has a step's or an answer's numbers appends to `steps`."""

    def __init__(self) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=STEP_RECORDS)
        self.events: deque[EventRecord] = deque(maxlen=EVENTS)
        self.beat = inf  # when the event loop last called `watch`
        self._said: dict[str, str] = {}  # the last text of each kind
        self._refused: dict[str, int] = {}
        self._minute = (0.0, 0, 0.0, 0)  # since when, and the counters then

    def event(self, at: float, kind: str, text: str) -> None:
        self.events.append(("event", at, kind, text[:TEXT]))

    def change(self, at: float, kind: str, text: str) -> None:
        """An event if the text of this kind is another one than the last."""
        if self._said.get(kind) != text:
            self._said[kind] = text
            self.event(at, kind, text)

    def watch(
        self, now: float, health: Health, refused: Mapping[str, int], *, steps: int, seconds: float, tokens: int
    ) -> None:
        """Called about once a second: what has changed, and a line for each minute. The counters only grow."""
        self.beat = now
        self.change(now, "health", health.status)  # the reason has numbers that always change
        more = {code: count - self._refused.get(code, 0) for code, count in refused.items()}
        if told := [f"{code} {count}" for code, count in more.items() if count]:
            self.event(now, "refused", ", ".join(told))
            self._refused = dict(refused)
        since, *before = self._minute
        if now - since >= MINUTE:
            if since and steps > before[0]:
                self.events.append(
                    ("minute", now, steps - int(before[0]), seconds - before[1], tokens - int(before[2]))
                )
            self._minute = (now, steps, seconds, tokens)
