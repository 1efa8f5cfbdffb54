"""Forms of a launch beside the one in use: neighbours of a table's row, of which the winner is printed, or named ones.

A figure `paste` is the line for the table. What attention and GEMMs compute is compared with what the table's row does;
a form that does not compile or does not fit the device is left out. All forms of all cases are compiled first, by as
many processes as the machine has room for, and then timed by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from statistics import median
from types import ModuleType
from typing import Any

import torch

from triolet.kernels.gpu.launches import KernelForm, form_of
from triolet.kernels.rms_norm.gpu import norm_rows_kernel
from triolet.loadtest.device.gpu_case import Figures, GpuMachine
from triolet.loadtest.device.gpu_timing import Works, microseconds

IN_USE = "in use"
TURNS = 3  # in which forms are compared: what the clock of the device does meets all of them
ALIKE = 2e-2  # of the largest value: two orders of sums, each rounded to bfloat16 (2^-8)
# What a field may become, from what it is. Fields that are not here stay.
NEIGHBOURS: dict[str, Callable[[Any], tuple[Any, ...]]] = {  # Any: a field's value
    "block_n": lambda size: (64, 128, 256),
    "resident": lambda number: (number - 1, number + 1),
    "programs": lambda number: (number // 2, number * 3 // 2, number * 2),
    "max_split": lambda split: (split // 2, 2 * split) if split > 1 else (2,),
    "least_share": lambda pages: (1, 2, 4),
    "warps": lambda number: (4, 8),
    "num_warps": lambda number: (number // 2, 2 * number),
    "row_warps": lambda number: (number // 2, 2 * number),
    "stages": lambda depth: (depth - 1, depth + 1),
    "descriptors": lambda used: (not used,),
    "rows": lambda number: (64, 128),
    "tile": lambda size: (size // 2, 2 * size),
    "kv_tile": lambda heads: (1, 2, 8),
    "slab_bytes": lambda size: (size // 2, 2 * size),
    "group_m": lambda number: (4, 16),
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """Work whose launch can be replaced."""

    forms: dict[str, Any]  # launches by what they change; the first is IN_USE. Any: a table's own dataclass
    works: Callable[[Any], Works]  # of a launch: each call enqueues, and gives its result where it is to be compared
    bound: int | None = None  # of the row: its `up_to`


Make = Callable[[GpuMachine], Tuned]


def neighbours(launch: Any, fixed: tuple[str, ...] = ()) -> dict[str, Any]:  # Any: a table's own dataclass
    """The launch itself, then each field changed alone."""
    found = {IN_USE: launch}
    for field in fields(launch):
        value = getattr(launch, field.name)
        for other in NEIGHBOURS[field.name](value) if field.name in NEIGHBOURS and field.name not in fixed else ():
            if other != value and (other is False or other != 0):
                found[f"{field.name}={other}"] = replace(launch, **{field.name: other})
    return found


def changed(make: Make, changes: Mapping[str, dict[str, Any]], machine: GpuMachine) -> Tuned:  # Any: fields' values
    """The same work with named changes of fields in place of neighbours. Left out is what changes nothing."""
    tuned = make(machine)
    launch = tuned.forms[IN_USE]
    named = {name: replace(launch, **values) for name, values in changes.items()}
    return replace(tuned, forms={IN_USE: launch} | {name: one for name, one in named.items() if one != launch})


def compile_forms(make: Make, machine: GpuMachine) -> Figures:
    """Into Triton's cache on disk, which processes share."""
    tuned, refused = make(machine), 0
    with compiling() as compiled:
        for launch in tuned.forms.values():
            try:
                for work in tuned.works(launch).values():
                    work()
            except Exception as error:
                if "CUDA error" in str(error):
                    raise
                refused += 1
    return {"forms": len(tuned.forms), "kernels": len(compiled), "refused": refused}


@contextmanager
def compiling() -> Generator[set[KernelForm]]:
    """Inside, kernels are compiled and not launched; in the interpreter, neither. The set gets their forms."""
    launcher: Any = type(norm_rows_kernel)  # Any: Triton's own class, one of whose methods is replaced
    run, found = launcher.run, set[KernelForm]()

    def compile_only(kernel: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:  # Any: Triton's own
        found.add(form_of(kernel, args, kwargs))
        compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        if compiled is not None:
            compiled.run  # noqa: B018  # makes the launcher, and raises where the device has no room for the kernel

    with replaced(launcher, "run", compile_only):
        yield found


def in_turns(
    tuned: Tuned, names: list[str], turns: int, machine: GpuMachine
) -> tuple[dict[str, float], dict[str, str]]:
    """Microseconds of each form, and why others have none."""
    clock, alike = on_host if machine.dry else microseconds, Alike()
    times: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    for turn in range(turns):
        for name in names:
            if name in refused:
                continue
            try:
                works = tuned.works(tuned.forms[name])
                for what, work in works.items() if turn == 0 else ():
                    alike.check(what, work())
                times.setdefault(name, []).append(sum(map(clock, works.values())))
            except Exception as error:
                if "CUDA error" in str(error) or name == IN_USE:
                    raise
                refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:60]
    return {name: median(taken) for name, taken in times.items() if name not in refused}, refused


def on_host(work: Callable[[], object]) -> float:
    """Microseconds on the clock of the host, once: of interpreted kernels, in a dry run."""
    began = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - began)


def tune(make: Make, machine: GpuMachine) -> Figures:
    """The fastest form. Each is timed once; the winner and the one in use, in turns, once more."""
    tuned = make(machine)
    times, refused = in_turns(tuned, list(tuned.forms), 1, machine)
    winner, *others = sorted(times, key=times.__getitem__)
    final, _ = in_turns(tuned, list(dict.fromkeys((IN_USE, winner))), TURNS, machine)
    launch, second = tuned.forms[winner], times[others[0]] if others else times[winner]
    evidence = f"measured on {machine.name}: {times[winner]:.1f} us of {len(times)} forms, the next {second:.1f}"
    return {
        "us": final[winner],
        "in_use_us": final[IN_USE],
        "gain": final[IN_USE] / final[winner],
        "winner": winner,
        "paste": f'LaunchRow({tuned.bound}, {launch}, "{evidence}"),',
        "all_forms": "; ".join(f"{times[name]:.1f} us {name}" for name in (winner, *others)),
        "left_out_forms": "; ".join(f"{name}: {why}" for name, why in refused.items()) or "none",
    }


def compare(make: Make, machine: GpuMachine) -> Figures:
    """Every form in turns with the one in use: its microseconds, and how often they go into those."""
    tuned = make(machine)
    times, refused = in_turns(tuned, list(tuned.forms), TURNS, machine)
    figures: Figures = {"us": times.pop(IN_USE)}
    for name, taken in times.items():
        figures |= {f"{name}_us": taken, f"{name}_gain": figures["us"] / taken}
    return figures | ({"refused": str(refused)} if refused else {})


@contextmanager
def replaced(owner: ModuleType | type, name: str, value: object) -> Generator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class Alike:
    """Refuses a result that differs from the first one by more than roundings."""

    def __init__(self) -> None:
        self._first: dict[str, torch.Tensor] = {}

    def check(self, name: str, result: object) -> None:
        """None: what was done is not compared."""
        if isinstance(result, torch.Tensor):
            first = self._first.setdefault(name, result.float().clone())
            if not bool(((result.float() - first).abs() <= ALIKE * first.abs().max()).all()):
                raise ValueError("computes something else than the launch in use")
