"""What works row by row on the device: norm, rope with cache write, gate, gather. Timed and tuned.

Times are fractions of the copy bandwidth, and beside liger-kernel's where its wheel is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

import torch

from triolet.kernels.activation import gpu as activation_gpu
from triolet.kernels.activation.gpu import activate
from triolet.kernels.embedding import gpu as embedding_gpu
from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.rms_norm import gpu as rms_norm_gpu
from triolet.kernels.rms_norm.gpu import norm_rows
from triolet.kernels.rope import gpu as rope_gpu
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_timing import beside, microseconds, of_copy, rival
from triolet.loadtest.device.gpu_tuning import tune_table

HIDDEN, GATED, VOCAB = 4096, 14336, 128256
HEADS, KV_HEADS, HEAD = 32, 8, 128


def time_rms_norm(rows: int, machine: GpuMachine) -> Figures:
    """With residual: two rows read and two written."""
    x, residual = drawn(1, 2, rows, HIDDEN).bfloat16()
    weight, out = drawn(2, HIDDEN).bfloat16(), torch.empty_like(x)
    run = partial(norm_rows, x, weight, 1e-5, out, residual=residual, capability=machine.capability)
    return of_copy(microseconds(run), 4 * x.nbytes, machine)


def time_silu_mul(rows: int, machine: GpuMachine) -> Figures:
    x, out = drawn(1, rows, 2 * GATED).bfloat16(), torch.empty(rows, GATED, dtype=torch.bfloat16)
    run = partial(activate, x, out, activation="silu", gated=True, capability=machine.capability)
    return of_copy(microseconds(run), x.nbytes + out.nbytes, machine)


def time_rope(rows: int, machine: GpuMachine) -> Figures:
    """Queries read and written, keys and values read and cached."""
    qkv = drawn(1, rows, (HEADS + 2 * KV_HEADS) * HEAD).bfloat16()
    pages = rows // PAGE + 1
    cache = LayerCache(*(torch.zeros(pages, KV_HEADS, PAGE, HEAD, dtype=torch.bfloat16) for _ in range(2)))
    table = torch.rand(8192, HEAD)
    positions, slots = torch.arange(rows).int() % 8192, torch.randperm(pages * PAGE)[:rows].int()
    run = partial(rope_cache, qkv, HeadWeights(), table, positions, slots, cache, capability=machine.capability)
    return of_copy(microseconds(run), 2 * qkv.nbytes, machine)


def time_gather(rows: int, machine: GpuMachine) -> Figures:
    table, ids = drawn(1, VOCAB, HIDDEN).bfloat16(), torch.randint(0, VOCAB, (rows,)).int()
    out = torch.empty(rows, HIDDEN, dtype=torch.bfloat16)
    run = partial(gather_rows, ids, table, out, capability=machine.capability)
    return of_copy(microseconds(run), 2 * out.nbytes, machine)


def beside_liger(name: str, rows: int, machine: GpuMachine) -> Figures:
    """One of ours beside liger-kernel's."""
    with rival("liger-kernel"):
        if name == "rms_norm":  # of x + residual, both given back
            forward = import_module("liger_kernel.ops.fused_add_rms_norm").fused_add_rms_norm_forward
            x, residual = drawn(1, 2, rows, HIDDEN).bfloat16()
            theirs = partial(forward, x, residual, drawn(2, HIDDEN).bfloat16(), 1e-5, 0.0, "llama")
        else:
            forward = import_module("liger_kernel.ops.swiglu").swiglu_fused_gate_up_forward
            theirs = partial(forward, drawn(1, rows, 2 * GATED).bfloat16())
    ours = TIMED[name](rows, machine)
    return ours | beside(ours["us"], {"liger": theirs})


TIMED = {"rms_norm": time_rms_norm, "silu_mul": time_silu_mul, "rope": time_rope, "gather": time_gather}


def times(dry: bool) -> list[GpuCase]:
    del dry  # never there
    found = [GpuCase(f"{name} {rows} rows", partial(run, rows)) for name, run in TIMED.items() for rows in (64, 8192)]
    return found + [
        GpuCase(f"rival: liger {name} {rows} rows", partial(beside_liger, name, rows))
        for name in ("rms_norm", "silu_mul")
        for rows in (64, 8192)
    ]


def tunings(dry: bool) -> list[GpuCase]:
    del dry  # never there
    tables: tuple[tuple[str, ModuleType, str, int, Callable[[GpuMachine], Figures]], ...] = (
        ("rms_norm", rms_norm_gpu, "TABLE", HIDDEN, partial(time_rms_norm, 8192)),
        ("silu_mul", activation_gpu, "TILES", GATED, partial(time_silu_mul, 8192)),
        ("gather", embedding_gpu, "TABLE", HIDDEN, partial(time_gather, 8192)),
        ("rope decode", rope_gpu, "TABLE", 64, partial(time_rope, 64)),
        ("rope prefill", rope_gpu, "TABLE", 8192, partial(time_rope, 8192)),
    )
    return [GpuCase(name, partial(tune_table, module, table, size, run)) for name, module, table, size, run in tables]
