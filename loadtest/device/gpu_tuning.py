"""Launch tables against their neighbours: one field of a row changed at a time, the winner printed.

A figure `paste` is the line for the table. What attention and GEMMs compute is compared with what the table's row does;
a candidate that does not compile or does not fit the device is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from triolet.kernels.embedding import gpu as embedding_launch
from triolet.kernels.gemm import gpu_launch as gemm_launch
from triolet.kernels.gemm.gpu_table import MEBIBYTE, TABLES, Few, Launch, Library, LinearFormat, Many, launch_for
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_w8,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
)
from triolet.kernels.gpu.table import LaunchRow, choose
from triolet.kernels.paged_attention.gpu_table import DecodeLaunch
from triolet.kernels.rms_norm import gpu as rms_norm_launch
from triolet.kernels.rope import gpu as rope_launch
from triolet.kernels.sampling import gpu_buffers
from triolet.kernels.silu_mul import gpu as silu_mul_launch
from triolet.loadtest.device import gpu_bench_rows as rows_bench
from triolet.loadtest.device.gpu_bench_attention import EVEN, LLAMA, PROMPT
from triolet.loadtest.device.gpu_bench_gemm import SHAPES, packed_w4
from triolet.loadtest.device.gpu_case import Case, Figures, Machine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_ragged import Ragged
from triolet.loadtest.device.gpu_timing import microseconds

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
    candidates: list[Any], run_of: Callable[[Any], float], bound: int | None, machine: Machine
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
def replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
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


def attention(kind: str, cache: str, machine: Machine) -> Figures:
    """Decode over 64 sequences of 4,096, or the prefill of a prompt of 8,192."""
    batch = Ragged(replace(LLAMA, cache=cache), EVEN if kind == "decode" else [(PROMPT, PROMPT)])
    launch, alike = batch.launch(machine), Alike()

    def run(candidate: Any) -> float:  # Any: a decode or a prefill launch
        if isinstance(candidate, DecodeLaunch):
            candidate = replace(candidate, programs=candidate.resident * machine.multiprocessors)
        changed = replace(launch, **{kind: candidate})
        plan, workspace = batch.prepare(changed)
        alike.check(cache, batch.attend(changed, plan, workspace)[: batch.real])
        return microseconds(lambda: batch.attend(changed, plan, workspace))

    # As the table has it: programs follow from the device.
    of_table = replace(launch.decode, programs=0) if kind == "decode" else launch.prefill
    return tune(list(neighbours(of_table)), run, None, machine)


def packed_for(kind: LinearFormat, n: int, k: int) -> PackedLinear:
    match kind:
        case "w4a16":
            return packed_w4(n, k)
        case "w8a16":
            return pack_w8(drawn(2, n, k))
        case "w8a8":
            return pack_w8a8(drawn(2, n, k))
        case "fp8":
            return pack_fp8(*quantise_fp8(drawn(2, n, k), 1, 0))
        case "bf16":
            return pack_bf16(drawn(2, n, k))


def operands(kind: LinearFormat, rows: int, k: int) -> tuple[torch.Tensor, ...]:
    """x, and its scales where the format has some."""
    x = drawn(1, rows, k)
    match kind:
        case "w8a8":
            return quantise_int8(x)
        case "fp8":
            return quantise_fp8(x, 1, 0)
        case _:
            return (x.bfloat16(),)


def gemm(kind: LinearFormat, rows: int, machine: Machine) -> Figures:
    """Microseconds over the three shapes together, so that one shape does not decide."""
    if kind == "fp8":
        machine.need_float8()
    weights = [packed_for(kind, n, k) for n, k in SHAPES]
    launch: Launch = launch_for(kind, machine.capability, rows, False)
    table = TABLES[kind]
    row = next(
        row for row in table[max(known for known in table if known <= machine.capability)] if row.launch == launch
    )
    alike = Alike()
    inputs = {k: operands(kind, rows, k) for _, k in SHAPES}
    call: Callable[..., torch.Tensor] = getattr(gemm_launch, f"{kind}_gemm")

    def run(candidate: Launch) -> float:
        with replaced(gemm_launch, "launch_for", lambda *_: candidate):
            total = 0.0
            for weight in weights:
                out = torch.empty(rows, weight.n, dtype=torch.bfloat16)
                work = partial(call, *inputs[weight.k], weight, capability=machine.capability, out=out)
                work()
                alike.check(f"{weight.n}x{weight.k}", out)
                total += microseconds(work)
        return total

    fixed = ("block_n",) if isinstance(launch, Few) and kind == "w8a16" else ()
    others: list[Launch] = list(neighbours(launch, fixed))
    if kind in ("w4a16", "w8a16"):  # 64 or 128 channels are what their kernels have; unpacking may win early
        others = [other for other in others if not isinstance(other, Few) or other.block_n <= 128]
        others += [] if isinstance(launch, Library) else [Library(32 * MEBIBYTE)]
    if isinstance(launch, Many):
        others += [replace(launch, block_m=size) for size in (64, 128) if size != launch.block_m]
    return tune(others, run, row.up_to, machine)


def row_kernel(
    module: ModuleType, name: str, size: int, bench: Callable[[Machine], Figures], machine: Machine
) -> Figures:
    """A table whose launch the bench's own launcher chooses."""
    table = getattr(module, name)
    launch = choose(table, machine.capability, size)
    rows = table[max(known for known in table if known <= machine.capability)]
    bound = next(row.up_to for row in rows if row.launch == launch)

    def run(candidate: object) -> float:
        with replaced(module, name, {80: (LaunchRow(None, candidate, "tried"),)}):
            return float(bench(machine)["us"])

    return tune(list(neighbours(launch)), run, bound, machine)


def cases(dry: bool) -> list[Case]:
    del dry  # never there
    found = [
        Case("decode bf16", partial(attention, "decode", "bf16")),
        Case("w4a16 16 rows", partial(gemm, "w4a16", 16)),
        Case("prefill bf16", partial(attention, "prefill", "bf16")),
        Case("decode fp8", partial(attention, "decode", "fp8")),
        Case("decode int8", partial(attention, "decode", "int8")),
    ]
    kinds: tuple[LinearFormat, ...] = ("w4a16", "fp8", "w8a16", "w8a8")
    found += [
        Case(f"{kind} {rows} rows", partial(gemm, kind, rows))
        for rows in (16, 32, 64, 128, 256, 1024)
        for kind in kinds
        if (kind, rows) != ("w4a16", 16)
    ]
    small: tuple[tuple[str, ModuleType, str, int, Callable[[Machine], Figures]], ...] = (
        ("rms_norm", rms_norm_launch, "TABLE", rows_bench.HIDDEN, partial(rows_bench.time_rms_norm, 8192)),
        ("silu_mul", silu_mul_launch, "TILES", rows_bench.GATED, partial(rows_bench.time_silu_mul, 8192)),
        ("gather", embedding_launch, "TABLE", rows_bench.HIDDEN, partial(rows_bench.time_gather, 8192)),
        ("rope decode", rope_launch, "TABLE", 64, partial(rows_bench.time_rope, 64)),
        ("rope prefill", rope_launch, "TABLE", 8192, partial(rows_bench.time_rope, 8192)),
        ("sampler", gpu_buffers, "TABLE", rows_bench.VOCAB, partial(rows_bench.time_sampler, 64, "top-k and top-p")),
    )
    return found + [
        Case(name, partial(row_kernel, module, table, size, run)) for name, module, table, size, run in small
    ]
