"""What the GPU suite is made of: cases, what they run on, what they found, and its parts. Imports no torch.

A case returns figures or raises: `Wrong` where a kernel's result is not what it must be, `Skip` where the case cannot
run on this machine. Anything else that it raises is a failure of the case.

A part is a function of some files, which makes its cases. They are made where they run: making them imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from itertools import zip_longest
from typing import Any, Literal

Figures = dict[str, Any]  # Any: JSON values; numbers unless they are lines to read
Status = Literal["right", "target", "floor", "missed", "measured", "wrong", "failed", "crashed", "skipped"]
BAD: frozenset[Status] = frozenset({"wrong", "failed", "crashed"})
NEEDS_DEVICE = "needs a GPU"
HERE = "triolet.loadtest.device"
CHECKED = ("gpu_attention", "gpu_gemm", "gpu_experts", "gpu_rows", "gpu_rope", "gpu_sampling", "gpu_step_inputs")
TIMED = ("gpu_attention_times", "gpu_gemm_times", "gpu_experts", "gpu_rows_times", "gpu_sampling")
SMOKE_SECONDS = 60.0  # of the whole part: what has not ended then is left to correctness
LONGEST_DRY = 600  # seconds: the interpreter has no device that could hang


@dataclass(frozen=True, slots=True)
class SuitePart:
    """Its files come in stages: a wrong kernel should name itself before a model shows it, and FlexAttention compiles
    longest.
    """

    function: str  # of its files: it makes the cases
    stages: tuple[tuple[str, ...], ...]
    share: float  # of the budget, when it begins no more cases: one run sees something of every part, the next goes on
    longest: int  # seconds after which a case hangs, compiling included
    dry: bool = True  # runs without a GPU, too, interpreted and tiny
    alone: bool = True  # on the machine: it is timed
    needs: str = ""  # another part


# In this order: what is wrong need not be fast, and every fraction needs its limit.
PARTS = {
    "smoke": SuitePart("smoke", (("gpu_smoke",),), 1.0, 50, alone=False),
    "correctness": SuitePart("checks", (CHECKED, ("gpu_models",)), 0.3, 240, alone=False),
    "limits": SuitePart("times", (("gpu_limits",),), 1.0, 60, dry=False),
    "kernels": SuitePart("times", (TIMED, ("gpu_flex_attention",)), 0.55, 90, dry=False, needs="limits"),
    "models": SuitePart("times", (("gpu_model_times",),), 0.75, 240, needs="limits"),
    "serving": SuitePart("times", (("gpu_serving",),), 0.85, 200),
    "compiling": SuitePart("compilations", (("gpu_tuned",),), 0.95, 150, alone=False),
    "tuning": SuitePart("tunings", (("gpu_tuned",),), 1.0, 90, needs="compiling"),
}


class Wrong(Exception):
    """A kernel computed something else than its definition."""


class Skip(Exception):
    """Not on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class GpuMachine:
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
    def from_json(cls, values: dict[str, Any]) -> GpuMachine:
        return cls(**values)

    def need(self, kind: str) -> None:
        """Raises Skip where it cannot multiply weights of this kind; a cache of 8 bits it can always read."""
        if kind.startswith("fp8") and self.capability < 89:
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
class GpuCase:
    """`run` returns the figures of a machine. A `planted` case holds a wrong kernel: it is right if refused."""

    name: str
    run: Callable[[GpuMachine], Figures]
    goal: Goal | None = None
    checks: bool = False  # of values, not of speed: "right" is all it can be
    planted: bool = False
    on_host: bool = False  # tensors are made on the host unless it says otherwise; else on the machine's place


def check(name: str, run: Callable[[GpuMachine], Figures], *, on_host: bool = False) -> GpuCase:
    return GpuCase(name, run, checks=True, on_host=on_host)


def planted(name: str, run: Callable[[GpuMachine], Figures], *, on_host: bool = False) -> GpuCase:
    return GpuCase(f"planted: {name}", run, checks=True, planted=True, on_host=on_host)


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
        read: dict[str, Any] = values | {"goal": None if goal is None else Goal(**goal)}  # Any: of many types
        return cls(**read)


def cases_of(part: str, dry: bool) -> Iterator[GpuCase]:
    """Of a stage the first case of each file, then the second: cut short, it has seen something of every file."""
    for files in PARTS[part].stages:
        for row in zip_longest(*(cases_in(file, PARTS[part].function, dry) for file in files)):
            yield from (case for case in row if case is not None)


def cases_in(file: str, function: str, dry: bool) -> list[GpuCase]:
    """A file that misses a package has one case, which is skipped; one that breaks has one, which fails."""
    try:
        made: list[GpuCase] = getattr(import_module(f"{HERE}.{file}"), function)(dry)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("triolet"):
            return [GpuCase(f"{file} cannot be used", partial(_raise, error))]
        return [GpuCase(f"{file} without {error.name}", partial(_raise, Skip(f"{error.name} is not installed here")))]
    except Exception as error:
        return [GpuCase(f"{file} cannot be used", partial(_raise, error))]
    return made


def _raise(error: Exception, _machine: GpuMachine) -> Figures:
    raise error


def chosen_parts(names: list[str]) -> list[str]:
    """In the suite's order; what measures fractions takes the limits along, tuning what it compiles first."""
    wanted = {*names, *(PARTS[name].needs for name in names)}
    return [part for part in PARTS if part in wanted]


def begin_until(part: str, began: float, minutes: float, shared: bool) -> float:
    """The time after which the part begins no case. Not `shared`: it has the whole budget."""
    return began + 60 * minutes * (PARTS[part].share if shared else 1.0)
