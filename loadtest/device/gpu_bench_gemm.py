"""The GEMMs of Llama-3.1-8B's layers beside cuBLAS and torch._scaled_mm, for 1 to 4096 rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from triolet.kernels.gemm.gpu_launch import fp8_gemm, w4a16_gemm, w8a8_gemm, w8a16_gemm, workspace_bytes
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_fp8,
    pack_w4,
    pack_w8,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from triolet.loadtest.device.gpu_case import Case, Figures, Goal, Machine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_rivals import gemlite_linear
from triolet.loadtest.device.gpu_timing import beside, microseconds

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))  # N, K: attention's output, gate or up, down
FEW = 32  # rows up to which 4-bit weights must win by the bytes they save
W4_ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096)
OTHER_ROWS = (1, 16, 64, 256, 4096)
GEMLITE_ROWS = (1, 16, 64, 1024)


def packed_w4(n: int, k: int) -> PackedLinear:
    integers, scales, zeros = quantise_w4(drawn(2, n, k), 128, False)
    return pack_w4(integers, scales, zeros, 128)


def against_cublas(time: float, m: int, n: int, k: int) -> Figures:
    x, w, out = drawn(1, m, k).bfloat16(), drawn(2, n, k).bfloat16(), torch.empty(m, n, dtype=torch.bfloat16)
    return beside(time, {"cublas": partial(torch.mm, x, w.T, out=out)})


def figures_of(time: float, weight: PackedLinear, m: int, machine: Machine) -> Figures:
    """The rate of arithmetic, and the share of the bandwidth that the weights alone take."""
    read = sum(part.nbytes for part in (weight.weight, weight.scales, weight.offsets) if part is not None)
    return {
        "us": time,
        "tflops": 2e-6 * m * weight.n * weight.k / time,
        "weights_of_copy": read / time / 1e3 / machine.limit("copy_gb_s"),
    }


def packed(pack: Callable[[int, int], PackedLinear], m: int, n: int, k: int, machine: Machine) -> Figures:
    """4-bit or 8-bit weights and bfloat16 rows, against cuBLAS on bfloat16."""
    weight, x = pack(n, k), drawn(1, m, k).bfloat16()
    out = torch.empty(m, n, dtype=torch.bfloat16)
    space = torch.empty(workspace_bytes(weight, m, machine.capability), dtype=torch.uint8)
    gemm = w4a16_gemm if weight.format == "w4a16" else w8a16_gemm
    time = microseconds(partial(gemm, x, weight, capability=machine.capability, out=out, workspace=space))
    return figures_of(time, weight, m, machine) | against_cublas(time, m, n, k)


def fp8(m: int, n: int, k: int, machine: Machine) -> Figures:
    """Scales per token and channel, against torch._scaled_mm in both of its modes."""
    machine.need_float8()
    weight = pack_fp8(*quantise_fp8(drawn(2, n, k), 1, 0))
    x, scales = quantise_fp8(drawn(1, m, k), 1, 0)
    assert weight.scales is not None
    out = torch.empty(m, n, dtype=torch.bfloat16)
    space = torch.empty(workspace_bytes(weight, m, machine.capability), dtype=torch.uint8)
    time = microseconds(partial(fp8_gemm, x, scales, weight, capability=machine.capability, out=out, workspace=space))
    by_row, one = (scales[:, None], weight.scales[None, :]), torch.ones(())
    rivals: dict[str, Callable[[], object]] = {}
    for fast in (True, False):
        for name, (a, b) in (("rows", by_row), ("tensor", (one, one))):
            rivals[f"{name}{' fast' if fast else ''}"] = partial(
                torch._scaled_mm, x, weight.weight.T, scale_a=a, scale_b=b, out_dtype=torch.bfloat16,
                use_fast_accum=fast,
            )  # fmt: skip
    return figures_of(time, weight, m, machine) | beside(time, rivals)


def int8(m: int, n: int, k: int, machine: Machine) -> Figures:
    """int8 rows and weights, against cuBLAS on bfloat16."""
    weight, (x, scales) = pack_w8a8(drawn(2, n, k)), quantise_int8(drawn(1, m, k))
    out = torch.empty(m, n, dtype=torch.bfloat16)
    space = torch.empty(workspace_bytes(weight, m, machine.capability), dtype=torch.uint8)
    time = microseconds(partial(w8a8_gemm, x, scales, weight, capability=machine.capability, out=out, workspace=space))
    return figures_of(time, weight, m, machine) | against_cublas(time, m, n, k)


def gemlite(m: int, n: int, k: int, machine: Machine) -> Figures:
    """4-bit weights of one quantisation, ours beside gemlite's."""
    integers, scales, zeros = quantise_w4(drawn(2, n, k), 128, False)
    assert zeros is not None
    x = drawn(1, m, k).bfloat16()
    theirs = gemlite_linear(integers, scales, zeros)
    ours = packed(packed_w4, m, n, k, machine)
    return ours | beside(ours["us"], {"gemlite": lambda: theirs(x)})


def w4_goal(m: int, n: int, k: int) -> Goal:
    if m > FEW:
        return Goal("speedup", 0.95, 1.0)
    return Goal("speedup", 1.7 if n == k else 2.2, 3.3)


def cases(dry: bool) -> list[Case]:
    del dry  # never there
    found = [
        Case(f"w4 {m}x{n}x{k}", partial(packed, packed_w4, m, n, k), w4_goal(m, n, k))
        for n, k in SHAPES
        for m in W4_ROWS
    ]
    for m in OTHER_ROWS:
        n, k = SHAPES[1]
        goal = Goal("speedup", 1.0, 1.4) if m <= 16 else Goal("speedup", 0.95, 1.05)
        found += [
            Case(f"w8 {m}x{n}x{k}", partial(packed, lambda n, k: pack_w8(drawn(2, n, k)), m, n, k)),
            Case(f"fp8 {m}x{n}x{k}", partial(fp8, m, n, k), goal),
            Case(f"int8 {m}x{n}x{k}", partial(int8, m, n, k)),
        ]
    return found + [
        Case(f"rival: gemlite w4 {m}x{n}x{k}", partial(gemlite, m, n, k)) for n, k in SHAPES[:2] for m in GEMLITE_ROWS
    ]
