"""What works row by row on the device: norm, rope with cache write, gate, gather: timed.

Times are fractions of the copy bandwidth, and beside liger-kernel's where its wheel is installed.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from triolet.kernels.activation.gpu import activate
from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.rms_norm.gpu import norm_rows
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_timing import Moved, beside, rival, time_moved

HIDDEN, GATED, VOCAB = 4096, 14336, 128256
HEADS, KV_HEADS, HEAD = 32, 8, 128


def rms_norm_work(rows: int, machine: GpuMachine) -> Moved:
    """With residual: two rows read and two written."""
    x, residual = drawn(1, 2, rows, HIDDEN).bfloat16()
    weight, out = drawn(2, HIDDEN).bfloat16(), torch.empty_like(x)
    run = partial(norm_rows, x, weight, 1e-5, out, residual=residual, capability=machine.capability)
    return Moved(run, 4 * x.nbytes)


def silu_mul_work(rows: int, machine: GpuMachine) -> Moved:
    x, out = drawn(1, rows, 2 * GATED).bfloat16(), torch.empty(rows, GATED, dtype=torch.bfloat16)
    run = partial(activate, x, out, activation="silu", gated=True, capability=machine.capability)
    return Moved(run, x.nbytes + out.nbytes)


def rope_work(rows: int, machine: GpuMachine) -> Moved:
    """Queries read and written, keys and values read and cached."""
    qkv = drawn(1, rows, (HEADS + 2 * KV_HEADS) * HEAD).bfloat16()
    pages = rows // PAGE + 1
    cache = LayerCache(*(torch.zeros(pages, KV_HEADS, PAGE, HEAD, dtype=torch.bfloat16) for _ in range(2)))
    table = torch.rand(8192, HEAD)
    positions, slots = torch.arange(rows).int() % 8192, torch.randperm(pages * PAGE)[:rows].int()
    run = partial(rope_cache, qkv, HeadWeights(), table, positions, slots, cache, capability=machine.capability)
    return Moved(run, 2 * qkv.nbytes)


def gather_work(rows: int, machine: GpuMachine) -> Moved:
    table, ids = drawn(1, VOCAB, HIDDEN).bfloat16(), torch.randint(0, VOCAB, (rows,)).int()
    out = torch.empty(rows, HIDDEN, dtype=torch.bfloat16)
    run = partial(gather_rows, ids, table, out, capability=machine.capability)
    return Moved(run, 2 * out.nbytes)


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
    ours = time_moved(partial(WORKS[name], rows), machine)
    return ours | beside(ours["us"], {"liger": theirs})


WORKS = {"rms_norm": rms_norm_work, "silu_mul": silu_mul_work, "rope": rope_work, "gather": gather_work}


def times(_dry: bool) -> list[GpuCase]:
    found = [
        GpuCase(f"{name} {rows} rows", partial(time_moved, partial(work, rows)))
        for name, work in WORKS.items()
        for rows in (64, 8192)
    ]
    return found + [
        GpuCase(f"rival: liger {name} {rows} rows", partial(beside_liger, name, rows))
        for name in ("rms_norm", "silu_mul")
        for rows in (64, 8192)
    ]
