"""What is tuned, and the variants that are compared: rows of the launch tables, on Llama-3.1-8B's shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from triolet.kernels.activation import gpu as activation_gpu
from triolet.kernels.embedding import gpu as embedding_gpu
from triolet.kernels.gemm import gpu_launch
from triolet.kernels.gemm.gpu_operands import bytes_of
from triolet.kernels.gemm.gpu_table import MEBIBYTE, TABLES, Few, Launch, Library, LinearFormat, Many, launch_for
from triolet.kernels.gpu.table import LaunchRow, choose
from triolet.kernels.paged_attention.gpu_table import DecodeLaunch
from triolet.kernels.rms_norm import gpu as rms_norm_gpu
from triolet.kernels.rope import gpu as rope_gpu
from triolet.kernels.sampling import gpu_buffers
from triolet.loadtest.device.gpu_attention_times import EVEN, LLAMA, PROMPT
from triolet.loadtest.device.gpu_case import GpuCase, GpuMachine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_gemm import inputs_of, weight_of
from triolet.loadtest.device.gpu_gemm_times import SHAPES
from triolet.loadtest.device.gpu_ragged import Form, Ragged
from triolet.loadtest.device.gpu_rows_times import (
    GATED,
    HIDDEN,
    VOCAB,
    gather_work,
    rms_norm_work,
    rope_work,
    silu_mul_work,
)
from triolet.loadtest.device.gpu_sampling import sampler_work
from triolet.loadtest.device.gpu_timing import Moved, Works
from triolet.loadtest.device.gpu_tuning import (
    Make,
    Tuned,
    changed,
    compare,
    compile_forms,
    neighbours,
    replaced,
    tune,
)

Chunks = list[tuple[int, int]]


def attention(kind: str, form: Form, chunks: Chunks, machine: GpuMachine) -> Tuned:
    """One layer's decode or prefill, its plan left out."""
    batch = Ragged.drawn(form, chunks)
    launch = batch.launch(machine)

    def works(candidate: Any) -> Works:  # Any: a decode or a prefill launch
        if isinstance(candidate, DecodeLaunch):
            candidate = replace(candidate, programs=candidate.resident * machine.multiprocessors)
        other = replace(launch, **{kind: candidate})
        plan, workspace = batch.prepare(other)
        return {kind: lambda: batch.attend(other, plan, workspace)[: batch.real]}

    # As the table has it: programs follow from the device.
    return Tuned(neighbours(replace(launch.decode, programs=0) if kind == "decode" else launch.prefill), works)


def products(kind: LinearFormat, rows: int, shapes: tuple[tuple[int, int], ...], machine: GpuMachine) -> Tuned:
    """Of all shapes together, so that one does not decide."""
    machine.need(kind)
    weights = [weight_of(kind, drawn(2, n, k)) for n, k in shapes]
    inputs = {k: inputs_of(kind, drawn(1, rows, k)) for _, k in shapes}
    launch: Launch = launch_for(kind, machine.capability, rows, False)
    table = TABLES[kind][max(known for known in TABLES[kind] if known <= machine.capability)]

    def works(candidate: Launch) -> Works:
        def chosen(*_: object) -> Launch:
            return candidate

        space = torch.zeros(max(bytes_of(weight, rows, candidate) for weight in weights), dtype=torch.uint8)

        def run(weight: Any, out: torch.Tensor) -> torch.Tensor:  # Any: a packed matrix
            x, x_scales = inputs[weight.k]
            with replaced(gpu_launch, "launch_for", chosen):
                gpu_launch.gemm(x, weight, x_scales, capability=machine.capability, out=out, workspace=space)
            return out

        return {
            f"{weight.n}x{weight.k}": partial(run, weight, torch.empty(rows, weight.n, dtype=torch.bfloat16))
            for weight in weights
        }

    forms: dict[str, Launch] = neighbours(launch, ("block_n",) if isinstance(launch, Few) and kind == "w8a16" else ())
    if kind in ("w4a16", "w8a16"):  # 64 or 128 channels are what their kernels have; unpacking may win early
        forms = {name: one for name, one in forms.items() if not isinstance(one, Few) or one.block_n <= 128}
        forms |= {} if isinstance(launch, Library) else {"library": Library(32 * MEBIBYTE)}
    if kind == "bf16":  # beside the library, whose kernels wait for the whole of the one in front
        forms |= {f"ours, {part} in K": Few(16, 64, part, 2 * machine.multiprocessors, 8, 4, 5) for part in (64, 128)}
    if isinstance(launch, Many):
        sizes = {64, 128} - {launch.block_m}
        forms |= {f"block_m={size}": replace(launch, block_m=size) for size in sorted(sizes)}
    return Tuned(forms, works, next(row.up_to for row in table if row.launch == launch))


def table_row(
    module: ModuleType, name: str, size: int, make: Callable[[GpuMachine], Moved], machine: GpuMachine
) -> Tuned:
    """The row of `module.name` for this size; what `make` runs looks its launch up there."""
    table, moved = getattr(module, name), make(machine)
    launch = choose(table, machine.capability, size)
    rows = table[max(known for known in table if known <= machine.capability)]

    def works(candidate: object) -> Works:
        def run() -> None:
            with replaced(module, name, {80: (LaunchRow(None, candidate, "tried"),)}):
                moved.run()

        return {name: run}

    return Tuned(neighbours(launch), works, next(row.up_to for row in rows if row.launch == launch))


BY_POINTERS: dict[str, dict[str, Any]] = {"by pointers": {"descriptors": False}, "by TMA": {"descriptors": True}}
STAGES: dict[str, dict[str, Any]] = {f"{depth} stages": {"stages": depth} for depth in (2, 3, 4)}
UNSPLIT: dict[str, dict[str, Any]] = {"K in one part": {"max_split": 1}}
TINY, TINY_CHUNKS = Form(heads=2, kv_heads=1, size=64), [(1, 70), (1, 1)]  # of the dry run


def tuned_rows(dry: bool) -> dict[str, Make]:
    if dry:
        return {"rms_norm": partial(table_row, rms_norm_gpu, "TABLE", HIDDEN, partial(rms_norm_work, 3))}
    caches = {cache: replace(LLAMA, cache=cache) for cache in ("bf16", "fp8", "int8")}
    prompt = [(PROMPT, PROMPT)]
    kinds: tuple[LinearFormat, ...] = ("w4a16", "fp8", "w8a16", "w8a8")
    few: tuple[LinearFormat, ...] = (*kinds, "bf16")
    sampler = partial(sampler_work, 64, "top-k and top-p")
    return {
        "decode bf16": partial(attention, "decode", caches["bf16"], EVEN),
        "prefill bf16": partial(attention, "prefill", caches["bf16"], prompt),
        **{f"{kind} 16 rows": partial(products, kind, 16, SHAPES) for kind in few},
        "decode fp8": partial(attention, "decode", caches["fp8"], EVEN),
        "prefill fp8": partial(attention, "prefill", caches["fp8"], prompt),
        "decode int8": partial(attention, "decode", caches["int8"], EVEN),
        "rms_norm": partial(table_row, rms_norm_gpu, "TABLE", HIDDEN, partial(rms_norm_work, 8192)),
        "silu_mul": partial(table_row, activation_gpu, "TILES", GATED, partial(silu_mul_work, 8192)),
        "gather": partial(table_row, embedding_gpu, "TABLE", HIDDEN, partial(gather_work, 8192)),
        "rope decode": partial(table_row, rope_gpu, "TABLE", 64, partial(rope_work, 64)),
        "rope prefill": partial(table_row, rope_gpu, "TABLE", 8192, partial(rope_work, 8192)),
        "sampler": partial(table_row, gpu_buffers, "TABLE", VOCAB, sampler),
        **{
            f"{kind} {rows} rows": partial(products, kind, rows, SHAPES)
            for rows in (32, 64, 128, 256, 1024)
            for kind in kinds
        },
    }


def variants(dry: bool) -> dict[str, Make]:
    """Questions that a run should answer, by what they change in a row of `tuned_rows`."""
    if dry:
        tiny = partial(attention, "decode", TINY, TINY_CHUNKS)
        return {"variant: decode tiny": partial(changed, tiny, BY_POINTERS)}
    rows = tuned_rows(dry)
    asked = {
        "decode bf16": BY_POINTERS | STAGES, "prefill bf16": BY_POINTERS | STAGES,
        "decode fp8": BY_POINTERS, "prefill fp8": BY_POINTERS,
        "w4a16 16 rows": UNSPLIT | STAGES, "fp8 16 rows": UNSPLIT | STAGES,
    }  # fmt: skip
    return {f"variant: {name}": partial(changed, rows[name], changes) for name, changes in asked.items()}


def tunings(dry: bool) -> list[GpuCase]:
    return [
        *(GpuCase(name, partial(compare, make)) for name, make in variants(dry).items()),
        *(GpuCase(name, partial(tune, make)) for name, make in tuned_rows(dry).items()),
    ]


def compilations(dry: bool) -> list[GpuCase]:
    """Of everything that `tunings` times."""
    return [GpuCase(name, partial(compile_forms, make)) for name, make in (variants(dry) | tuned_rows(dry)).items()]
