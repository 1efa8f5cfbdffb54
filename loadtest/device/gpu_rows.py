"""What works row by row on the device: norm, rope with cache write, gate, gather, step inputs. Right, timed, tuned.

Times are fractions of the copy bandwidth, and beside liger-kernel's where its wheel is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

import numpy as np
import torch

from triolet.kernels.activation import gpu as activation_gpu
from triolet.kernels.activation.gpu import activate
from triolet.kernels.embedding import gpu as embedding_gpu
from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.rms_norm import gpu as rms_norm_gpu
from triolet.kernels.rms_norm.gpu import norm_rows
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope import gpu as rope_gpu
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.kernels.rope.reference import rope_reference
from triolet.kernels.silu_mul.reference import silu_mul_reference
from triolet.kernels.step_inputs.gpu import copy_blocks, keep_drawn, prepare, scatter
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, equal, fault, require, within
from triolet.loadtest.device.gpu_timing import beside, microseconds, of_copy, rival
from triolet.loadtest.device.gpu_tuning import tune_table

Tensor = torch.Tensor
EPS = 1e-2  # large, so that leaving it out shows
LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SLACK = 1e-5  # of the largest value: float32 roundings, which move a tie
HIDDEN, GATED, VOCAB = 4096, 14336, 128256  # of what is timed
HEADS, KV_HEADS, HEAD = 32, 8, 128
FORMATS = {"int8": (torch.int8, False), "fp8": (torch.float8_e4m3fn, False), "fp8 groups": (torch.float8_e4m3fn, True)}


def as_numpy(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return tensor.double().cpu().numpy()


def as_tensor(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
    return torch.from_numpy(values).to(torch.get_default_device())


def check_rounded(out: Tensor, exact: Tensor, what: str) -> Figures:
    """Twice the rounding to bfloat16."""
    allowed = 2 * float((exact.bfloat16().double() - exact).abs().max())
    return {"error": within(out, exact, allowed, what), "allowed": allowed}


def check_stored(out: Tensor, scales: Tensor, exact: Tensor) -> Figures:
    """int8: half a step. e4m3: 2^-4 of the value, or half of the smallest step. Scales are largest / limit."""
    rows = len(exact)
    groups = scales.numel() // rows
    exact, limit = exact.reshape(rows, groups, -1), LIMITS[out.dtype]
    scale = scales.reshape(rows, groups, 1).double()
    wanted = exact.abs().amax(-1, keepdim=True) / limit
    within(scale, wanted, SLACK * wanted, "a scale")
    steps = exact / scale
    allowed = torch.full_like(steps, 0.5) if out.dtype == torch.int8 else (steps.abs() * 2**-4).clamp(min=2**-10)
    return {"error": within(out.reshape(steps.shape), steps, allowed + SLACK * limit, "a stored value")}


def output(rows: int, size: int, kind: str, machine: GpuMachine) -> tuple[Tensor, Tensor]:
    dtype, grouped = FORMATS[kind]
    if dtype == torch.float8_e4m3fn:
        machine.need_float8()
    return torch.empty(rows, size, dtype=dtype), torch.full((rows, size // 128) if grouped else (rows,), -1.0)


def check_rms_norm(rows: int, size: int, kind: str, machine: GpuMachine) -> Figures:
    x, residual = (0.2 * drawn(1, 2, rows, size)).bfloat16()
    weight = (1 + 0.1 * drawn(2, size)).bfloat16()
    added = residual.clone()
    if kind != "bf16":
        out, scales = output(rows, size, kind, machine)
        norm_rows(x, weight, EPS, out, residual=added, scales=scales, capability=machine.capability)
    else:
        out, scales = torch.empty_like(x), None
        norm_rows(x, weight, EPS, out, residual=added, capability=machine.capability)
    equal(added, x + residual, "the residual")
    exact = as_tensor(rms_norm_reference(as_numpy(added), as_numpy(weight), EPS))
    return check_rounded(out, exact, "the norm") if scales is None else check_stored(out, scales, exact)


def check_silu_mul(rows: int, size: int, kind: str, machine: GpuMachine) -> Figures:
    x = (3 * drawn(1, rows, 2 * size)).bfloat16()
    exact = as_tensor(silu_mul_reference(as_numpy(x[:, :size]), as_numpy(x[:, size:])))
    if kind == "bf16":
        out = torch.empty(rows, size, dtype=torch.bfloat16)
        activate(x, out, activation="silu", gated=True, capability=machine.capability)
        return check_rounded(out, exact, "the product")
    out, scales = output(rows, size, kind, machine)
    activate(x, out, activation="silu", gated=True, scales=scales, capability=machine.capability)
    return check_stored(out, scales, exact)


def check_gather(rows: int, count: int, size: int, machine: GpuMachine) -> Figures:
    table = drawn(1, count, size).bfloat16()
    ids = (torch.arange(rows) * 7919 % (count + 2) - 1).int()  # some lie outside
    out = torch.full((rows, size), torch.nan, dtype=torch.bfloat16)
    gather_rows(ids, table, out, capability=machine.capability)
    outside = (ids < 0) | (ids >= count)
    equal(out, table[ids.long().clamp(0, count - 1)].masked_fill(outside[:, None], 0), "a row")
    return {"rows": rows}


def check_rope(tokens: int, heads: int, kv_heads: int, size: int, cache: torch.dtype, machine: GpuMachine) -> Figures:
    """With bias and q/k norm; every third token is padding."""
    width, pages = (heads + 2 * kv_heads) * size, tokens // PAGE + 1
    qkv = drawn(1, tokens, width).bfloat16()
    norms = (1 + 0.1 * drawn(2, 2, size)).bfloat16()
    weights = HeadWeights(bias=drawn(3, width).bfloat16(), q_norm=norms[0], k_norm=norms[1], eps=0.1)
    positions = (torch.arange(tokens) * 13 % 512).int()
    slots = torch.randperm(pages * PAGE)[:tokens].int()
    slots[::3] = -1
    angles = 6 * torch.rand(512, size // 2)
    table = torch.cat([angles.cos(), angles.sin()], -1)
    shape = (pages, kv_heads, PAGE)
    keys, values = (torch.zeros(*shape, size).to(cache) for _ in range(2))
    scales = [torch.zeros(shape) if cache in LIMITS else None for _ in range(2)]
    full = as_numpy(qkv.double() + weights.bias.double()) if weights.bias is not None else as_numpy(qkv)
    q, k, v = np.split(full.reshape(tokens, -1, size), [heads, heads + kv_heads], axis=1)
    turn = as_numpy(table[positions.long()])[:, None]
    exact_q, exact_k = (
        as_tensor(rope_reference(rms_norm_reference(part, as_numpy(norm), 0.1), turn))
        for part, norm in ((q, norms[0]), (k, norms[1]))
    )
    rope_cache(
        qkv, weights, table, positions, slots, LayerCache(keys, values, *scales), capability=machine.capability
    )  # fmt: skip
    figures = check_rounded(qkv[:, : heads * size].reshape(exact_q.shape), exact_q, "a turned query")
    written = slots[slots >= 0].long()
    for stored, scale, part in ((keys, scales[0], exact_k), (values, scales[1], as_tensor(v))):
        found, exact = stored[written // PAGE, :, written % PAGE], part[slots >= 0].flatten(0, 1)
        if scale is None:
            check_rounded(found.flatten(0, 1), exact, "the cache")
        else:
            check_stored(found.flatten(0, 1), scale[written // PAGE, :, written % PAGE].reshape(-1), exact)
        entries = int((stored.float() != 0).any(-1).sum())
        require(entries == kv_heads * len(written), f"{entries} entries of the cache were written")
    return figures


def check_step_inputs(tokens: int, machine: GpuMachine) -> Figures:
    """A prompt, a decode row whose id is on the device, and padding."""
    del machine  # one launch for every device
    width, chunks = tokens // PAGE + 2, 3
    rows = torch.randperm(4 * (1 + width)).int().view(4, 1 + width)
    prompt = tokens - 5
    given = torch.full((tokens,), 77, dtype=torch.int32)
    given[prompt] = -1
    out = {name: torch.full((tokens,), 999, dtype=torch.int32) for name in ("ids", "positions", "slots")}
    lengths, tables = torch.full((chunks,), 999).int(), torch.full((chunks, width), 999).int()
    starts = torch.tensor([0, prompt, prompt + 1, prompt + 1]).int()
    first = torch.tensor([10, 70, 0]).int()
    slots = torch.tensor([2, 1, 0]).int()
    prepare(slots, first, starts, given, rows, lengths=lengths, block_tables=tables, **out)
    equal(lengths, torch.tensor([10 + prompt, 71, 0]).int(), "lengths")
    place = torch.cat([torch.arange(10, 10 + prompt), torch.tensor([70])])
    owner = torch.cat([torch.full((prompt,), 2), torch.tensor([1])])
    ids = given[: prompt + 1].clone()
    ids[prompt] = rows[1, 0]
    equal(out["ids"][: prompt + 1], ids, "ids")
    equal(out["positions"][: prompt + 1], place.int(), "positions")
    equal(out["slots"][: prompt + 1], (rows[owner, 1 + place // PAGE] * PAGE + place % PAGE).int(), "slots")
    require(bool((out["slots"][prompt + 1 :] == -1).all()), "padding has slots")
    pages = -(-(10 + prompt) // PAGE)
    equal(tables[0, :pages], rows[2, 1 : 1 + pages], "a block table")
    keep_drawn(torch.tensor([5, 6]).int(), torch.tensor([3, -1]).int(), rows)
    require(int(rows[3, 0]) == 5, "a drawn token was not kept")
    target = torch.zeros(tokens, dtype=torch.int32)
    scatter(given, torch.arange(tokens).flip(0).int(), target)
    equal(target, given.flip(0), "scatter")
    cache = torch.randint(0, 1 << 30, (2, 4, 70), dtype=torch.int32)
    wanted = cache.clone()
    wanted[:, 1] = wanted[:, 3]
    copy_blocks(torch.tensor([3]).int(), torch.tensor([1]).int(), cache)
    equal(cache, wanted, "a copied block")
    return {"tokens": tokens}


def planted_norm(machine: GpuMachine) -> Figures:
    with fault(rms_norm_gpu, "norm_rows_kernel", "/ SIZE + eps", "/ SIZE"):
        return check_rms_norm(3, 100, "bf16", machine)


def checks(dry: bool) -> list[GpuCase]:
    found: dict[str, partial[Figures]] = {}
    sizes = [(3, 384)] if dry else [(3, 100), (3, 384), (64, 4096), (1000, 14336), (5, 20480)]
    for rows, size in sizes:
        for kind in ("bf16", *FORMATS):
            if kind == "bf16" or size % 128 == 0:
                found[f"rms_norm {kind} {rows}x{size}"] = partial(check_rms_norm, rows, size, kind)
                found[f"silu_mul {kind} {rows}x{size}"] = partial(check_silu_mul, rows, size, kind)
    found["gather"] = partial(check_gather, 6, 7, 150) if dry else partial(check_gather, 999, 128256, 4096)
    for name, cache in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
        found[f"rope {name}"] = partial(check_rope, 7, 4, 2, 16, cache)
        if not dry:
            found[f"rope serving decode {name}"] = partial(check_rope, 64, 32, 8, 128, cache)
            found[f"rope serving prefill {name}"] = partial(check_rope, 2048, 32, 8, 128, cache)
    found["step inputs"] = partial(check_step_inputs, 80 if dry else 2000)
    return [*(check(name, run) for name, run in found.items()), planted("rms_norm without eps", planted_norm)]


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
