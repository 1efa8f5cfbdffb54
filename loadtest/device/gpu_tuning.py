"""Launch tables against their neighbours: one field of a row changed at a time, the winner printed.

A figure `paste` is the line for the table. What attention and GEMMs compute is compared with what the table's row does;
a candidate that does not compile or does not fit the device is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import torch

from triolet.kernels.gpu.table import LaunchRow, choose
from triolet.loadtest.device.gpu_case import Figures, GpuMachine

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


def neighbours(launch: Any, fixed: tuple[str, ...] = ()) -> Iterator[Any]:  # Any: a table's own dataclass
    """The launch itself, then each field changed alone."""
    yield launch
    for field in fields(launch):
        value = getattr(launch, field.name)
        for other in NEIGHBOURS[field.name](value) if field.name in NEIGHBOURS and field.name not in fixed else ():
            if other != value and other != 0:
                yield replace(launch, **{field.name: other})


def tune(
    candidates: list[Any], run_of: Callable[[Any], float], bound: int | None, machine: GpuMachine
) -> Figures:  # Any: launches
    """The fastest candidate; the first is the table's."""
    times: dict[str, float] = {}
    left_out: list[str] = []
    for candidate in candidates:
        try:
            times[repr(candidate)] = run_of(candidate)
        except Exception as error:
            if "CUDA error" in str(error) or candidate is candidates[0]:
                raise
            left_out.append(f"{candidate!r}: {type(error).__name__}")
    table, winner = times[repr(candidates[0])], min(times, key=times.__getitem__)
    second = sorted(times.values())[1] if len(times) > 1 else times[winner]
    evidence = f"measured on {machine.name}: {times[winner]:.1f} us of {len(times)} forms, the next {second:.1f}"
    return {
        "us": times[winner],
        "table_us": table,
        "gain": table / times[winner],
        "paste": f'LaunchRow({bound}, {winner}, "{evidence}"),',
        "all_forms": "; ".join(f"{time:.1f} us {name}" for name, time in sorted(times.items(), key=lambda x: x[1])),
        "left_out_forms": "; ".join(left_out) or "none",
    }


@contextmanager
def replaced(module: ModuleType, name: str, value: object) -> Generator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


class Alike:
    """Refuses a result that differs from the first one by more than roundings."""

    def __init__(self) -> None:
        self._first: dict[str, torch.Tensor] = {}

    def check(self, name: str, result: torch.Tensor) -> None:
        first = self._first.setdefault(name, result.float().clone())
        if not bool(((result.float() - first).abs() <= ALIKE * first.abs().max()).all()):
            raise ValueError("computes something else than the table's row")


def tune_table(
    module: ModuleType, name: str, size: int, bench: Callable[[GpuMachine], Figures], machine: GpuMachine
) -> Figures:
    """The row of `module.name` for this size; the launcher that `bench` times looks its launch up there."""
    table = getattr(module, name)
    launch = choose(table, machine.capability, size)
    rows = table[max(known for known in table if known <= machine.capability)]
    bound = next(row.up_to for row in rows if row.launch == launch)

    def run(candidate: object) -> float:
        with replaced(module, name, {80: (LaunchRow(None, candidate, "tried"),)}):
            return float(bench(machine)["us"])

    return tune(list(neighbours(launch)), run, bound, machine)
