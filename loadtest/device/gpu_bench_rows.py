"""The fused row kernels as fractions of the copy bandwidth, and the sampler's time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.rms_norm.gpu import rms_norm
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.kernels.sampling import gpu_launch as sampling
from triolet.kernels.sampling.gpu_buffers import make_sampled, make_workspace
from triolet.kernels.silu_mul.gpu import silu_mul
from triolet.loadtest.device.gpu_case import Case, Figures, Machine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_correct_sampling import records, staged
from triolet.loadtest.device.gpu_rivals import Work, liger_rms_norm, liger_silu_mul
from triolet.loadtest.device.gpu_timing import beside, microseconds

HIDDEN, GATED, VOCAB = 4096, 14336, 128256
HEADS, KV_HEADS, HEAD = 32, 8, 128
SAMPLERS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top-k and top-p": {"top_k": 40, "top_p": 0.9},
    "top-p of a flat row": {"top_p": 0.95, "temperature": 3.0},
    "logprobs": {"top": 5},
}


def of_copy(time: float, moved: int, machine: Machine) -> Figures:
    return {"us": time, "gb_s": moved / time / 1e3, "of_copy": moved / time / 1e3 / machine.limit("copy_gb_s")}


def time_rms_norm(rows: int, machine: Machine) -> Figures:
    """With residual: two rows read and two written."""
    x, residual = drawn(1, 2, rows, HIDDEN).bfloat16()
    weight, out = drawn(2, HIDDEN).bfloat16(), torch.empty_like(x)
    run = partial(rms_norm, x, weight, 1e-5, out, residual=residual, capability=machine.capability)
    return of_copy(microseconds(run), 4 * x.nbytes, machine)


def time_silu_mul(rows: int, machine: Machine) -> Figures:
    x, out = drawn(1, rows, 2 * GATED).bfloat16(), torch.empty(rows, GATED, dtype=torch.bfloat16)
    return of_copy(
        microseconds(partial(silu_mul, x, out, capability=machine.capability)), x.nbytes + out.nbytes, machine
    )


def time_rope(rows: int, machine: Machine) -> Figures:
    """Queries read and written, keys and values read and cached."""
    qkv = drawn(1, rows, (HEADS + 2 * KV_HEADS) * HEAD).bfloat16()
    pages = rows // PAGE + 1
    cache = LayerCache(*(torch.zeros(pages, KV_HEADS, PAGE, HEAD, dtype=torch.bfloat16) for _ in range(2)))
    table = torch.rand(8192, HEAD)
    positions, slots = torch.arange(rows).int() % 8192, torch.randperm(pages * PAGE)[:rows].int()
    run = partial(rope_cache, qkv, HeadWeights(), table, positions, slots, cache, capability=machine.capability)
    return of_copy(microseconds(run), 2 * qkv.nbytes, machine)


def liger(run: Callable[[int, Machine], Figures], make: Callable[[int], Work], rows: int, machine: Machine) -> Figures:
    """One of ours beside liger-kernel's."""
    theirs = make(rows)
    ours = run(rows, machine)
    return ours | beside(ours["us"], {"liger": theirs})


def time_gather(rows: int, machine: Machine) -> Figures:
    table, ids = drawn(1, VOCAB, HIDDEN).bfloat16(), torch.randint(0, VOCAB, (rows,)).int()
    out = torch.empty(rows, HIDDEN, dtype=torch.bfloat16)
    run = partial(gather_rows, ids, table, out, capability=machine.capability)
    return of_copy(microseconds(run), 2 * out.nbytes, machine)


def time_sampler(rows: int, asked: str, machine: Machine) -> Figures:
    """Rows of float32 logits; without what none of them asks for, as a step is launched."""
    logits = 4 * drawn(1, rows, VOCAB)
    fields = SAMPLERS[asked]
    device_rows = staged(records((fields,) * rows), np.zeros(0, np.int32), VOCAB, machine.place)
    device_rows.seen_slots.fill_(-1)
    workspace = make_workspace(rows, VOCAB, machine.capability, machine.place)
    out = make_sampled(rows, machine.place)
    run = partial(
        sampling.sample, logits, device_rows, workspace, out, capability=machine.capability,
        filters=bool(fields.keys() & {"top_k", "top_p"}), reports="top" in fields,
    )  # fmt: skip
    return of_copy(microseconds(run), 4 * rows * VOCAB, machine)


def cases(dry: bool) -> list[Case]:
    del dry  # never there
    found = [
        Case(f"{name} {rows} rows", partial(run, rows))
        for name, run in (
            ("rms_norm", time_rms_norm), ("silu_mul", time_silu_mul), ("rope", time_rope), ("gather", time_gather),
        )
        for rows in (64, 8192)
    ]  # fmt: skip
    return found + [
        Case(f"sampler {asked} {rows} rows", partial(time_sampler, rows, asked))
        for asked in SAMPLERS
        for rows in (1, 64)
    ] + [
        Case(f"rival: liger {name} {rows} rows", partial(liger, run, make, rows))
        for name, run, make in (
            ("rms_norm", time_rms_norm, lambda rows: liger_rms_norm(rows, HIDDEN)),
            ("silu_mul", time_silu_mul, lambda rows: liger_silu_mul(rows, GATED)),
        )
        for rows in (64, 8192)
    ]  # fmt: skip
