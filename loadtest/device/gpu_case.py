"""What the GPU suite is made of: a case, what it runs on, what it found, and how that is judged. Imports no torch.

A case returns figures or raises: `Wrong` where a kernel's result is not what it must be, `Skip` where the case cannot
run on this machine. Anything else that it raises is a failure of the case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Figures = dict[str, Any]  # Any: JSON values; numbers unless they are lines to read
Status = Literal["right", "target", "floor", "missed", "measured", "wrong", "failed", "crashed", "skipped"]
BAD: frozenset[Status] = frozenset({"wrong", "failed", "crashed"})
NEEDS_DEVICE = "needs a GPU"


class Wrong(Exception):
    """A kernel computed something else than its definition."""


class Skip(Exception):
    """Not on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where cases run. `limits` are what earlier cases measured and others build on."""

    place: str  # "cuda" or, interpreted, "cpu"
    capability: int
    name: str
    versions: dict[str, str]
    limits: dict[str, float] = field(default_factory=dict)
    multiprocessors: int = 132  # an H200's

    @property
    def dry(self) -> bool:
        return self.place == "cpu"

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Machine:
        return cls(**values)

    def need_float8(self) -> None:
        if self.capability < 89:
            raise Skip("this device has no float8")

    def limit(self, name: str) -> float:
        if name not in self.limits:
            raise Skip(f"the limit {name} was not measured: its case did not finish")
        return self.limits[name]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure's floor and target; the larger the better, unless `less`."""

    figure: str
    floor: float
    target: float
    less: bool = False

    def judge(self, figures: Figures) -> Status:
        if self.figure not in figures:
            return "measured"  # what it is compared with did not run here
        value = float(figures[self.figure])
        sign = -1 if self.less else 1
        if sign * value >= sign * self.target:
            return "target"
        return "floor" if sign * value >= sign * self.floor else "missed"


@dataclass(frozen=True, slots=True)
class Case:
    """`run` takes a machine and returns figures. A `planted` case holds a wrong kernel: it is right if refused."""

    name: str
    run: Callable[[Machine], Figures]
    goal: Goal | None = None
    checks: bool = False  # of values, not of speed: "right" is all it can be
    planted: bool = False
    on_host: bool = False  # tensors are made on the host unless it says otherwise; else on the machine's place


@dataclass(frozen=True, slots=True)
class Finding:
    """One finished case: a line of the journal."""

    name: str  # part/case
    status: Status
    seconds: float
    figures: Figures = field(default_factory=dict)
    note: str = ""
    goal: Goal | None = None

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        goal = values.get("goal")
        return cls(**(values | {"goal": None if goal is None else Goal(**goal)}))
