"""The parts of the GPU suite, in their order, and how much of its time each may take. Imports no torch.

A part is some modules with `cases(dry)`. Lists of cases are made where they run, since making them imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

from triolet.loadtest.device.gpu_case import Case, Figures, Machine, Skip

HERE = "triolet.loadtest.device"
# In this order: what is wrong need not be fast, and every fraction needs its limit.
PARTS: dict[str, tuple[str, ...]] = {
    "correctness": (
        "gpu_correct_models",
        "gpu_correct_attention",
        "gpu_correct_gemm",
        "gpu_correct_rows",
        "gpu_correct_sampling",
    ),
    "limits": ("gpu_limits",),
    "kernels": ("gpu_bench_attention", "gpu_bench_gemm", "gpu_bench_rows"),
    "models": ("gpu_bench_models",),
    "serving": ("gpu_bench_serving",),
    "tuning": ("gpu_tuning",),
}
DRY = ("correctness", "serving")  # what runs without a GPU, interpreted and tiny
ALONE = frozenset(PARTS) - {"correctness"}  # what is timed has the machine to itself
# Of the budget, when a part begins no more cases: one run sees something of everything, the next goes on.
SHARES = {"correctness": 0.3, "limits": 1.0, "kernels": 0.55, "models": 0.75, "serving": 0.9, "tuning": 1.0}
# Seconds after which a case hangs, compiling included. The interpreter has no device that could.
LONGEST = {"correctness": 240, "limits": 60, "kernels": 90, "models": 240, "serving": 200, "tuning": 150}
LONGEST_DRY = 600


def cases_of(part: str, dry: bool) -> Iterator[Case]:
    """A module that misses a package has one case, which is skipped; one that breaks has one, which fails."""
    for module in PARTS[part]:
        try:
            made: Callable[[bool], list[Case]] = import_module(f"{HERE}.{module}").cases
            yield from made(dry)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("triolet"):
                yield Case(f"{module} cannot be used", partial(_raise, error))
                continue
            yield Case(f"{module} without {error.name}", partial(_raise, Skip(f"{error.name} is not installed here")))
        except Exception as error:
            yield Case(f"{module} cannot be used", partial(_raise, error))


def _raise(error: Exception, machine: Machine) -> Figures:
    del machine
    raise error


def chosen_parts(names: list[str]) -> list[str]:
    """In the suite's order; what measures fractions takes the limits along."""
    wanted = set(names) | (set() if set(names) == {"correctness"} else {"limits"})
    return [part for part in PARTS if part in wanted]


def begin_until(part: str, began: float, minutes: float, shared: bool) -> float:
    """The time after which the part begins no case. Not `shared`: it has the whole budget."""
    return began + 60 * minutes * (SHARES[part] if shared else 1.0)
