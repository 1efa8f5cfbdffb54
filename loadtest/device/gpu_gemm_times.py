"""GEMMs on the device, timed beside cuBLAS, torch and gemlite.

Times are of Llama-3.1-8B's layers, for 1 to 4096 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from triolet.kernels.gemm import gpu_launch
from triolet.kernels.gemm.gpu_table import LinearFormat
from triolet.kernels.gemm.gpu_weights import PackedLinear, quantise_w4
from triolet.loadtest.device.gpu_case import Figures, Goal, GpuCase, GpuMachine, Skip
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_gemm import inputs_of, weight_of
from triolet.loadtest.device.gpu_timing import Works, beside, microseconds, rival

Tensor = torch.Tensor
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))  # N, K: attention's output, gate or up, down
FEW = 32  # rows up to which 4-bit weights must win by the bytes they save
W4_ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096)
OTHER_ROWS = (1, 16, 64, 256, 4096)
GEMLITE_ROWS = (1, 16, 64, 1024)
LIKE = 0.05  # of the largest value: a rival that computes something else is not timed


def time_gemm(kind: LinearFormat, m: int, n: int, k: int, machine: GpuMachine) -> Figures:
    """The rate of arithmetic, and the share of the bandwidth that the weights alone take; beside torch's GEMMs."""
    machine.need(kind)
    weight, (x, x_scales) = weight_of(kind, drawn(2, n, k)), inputs_of(kind, drawn(1, m, k))
    out = torch.empty(m, n, dtype=torch.bfloat16)
    space = torch.zeros(gpu_launch.workspace_bytes(weight, m, machine.capability), dtype=torch.uint8)
    time = microseconds(
        partial(gpu_launch.gemm, x, weight, x_scales, capability=machine.capability, out=out, workspace=space)
    )  # fmt: skip
    read = sum(part.nbytes for part in (weight.weight, weight.scales, weight.offsets) if part is not None)
    figures: Figures = {
        "us": time,
        "tflops": 2e-6 * m * n * k / time,
        "weights_of_copy": read / time / 1e3 / machine.limit("copy_gb_s"),
    }
    if x_scales is not None and kind == "fp8":
        return figures | beside(time, scaled_mm(x, x_scales, weight))
    x, w = drawn(1, m, k).bfloat16(), drawn(2, n, k).bfloat16()
    return figures | beside(time, {"cublas": partial(torch.mm, x, w.T, out=torch.empty_like(out))})


def scaled_mm(x: Tensor, x_scales: Tensor, weight: PackedLinear) -> Works:
    """torch._scaled_mm with scales by row and by tensor, in both of its modes."""
    assert weight.scales is not None
    one = torch.ones(())
    product = torch._scaled_mm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as other engines do
    return {
        f"{name}{' fast' if fast else ''}": partial(
            product, x, weight.weight.T, scale_a=a, scale_b=b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
        for fast in (True, False)
        for name, (a, b) in (("rows", (x_scales[:, None], weight.scales[None, :])), ("tensor", (one, one)))
    }


def gemlite_linear(integers: Tensor, scales: Tensor, zeros: Tensor) -> Callable[[Tensor], Tensor]:
    """x W^T for W = (integers - zeros) * scales, by gemlite's kernels.

    It carries launches that were tuned on an H100, which it takes by the device's name: an H200 gets them here, as the
    same processor, where else gemlite would tune for minutes.
    """
    with rival("gemlite"):
        gemlite = import_module("gemlite")
        tuned = Path(str(gemlite.__file__)).parent / "configs" / "h100.json"
        if torch.cuda.get_device_capability() == (9, 0) and tuned.exists():
            gemlite.load_config(str(tuned))
        kind = import_module("gemlite.helper").A16W4_HQQ_INT
        layer: Callable[[Tensor], Tensor] = kind(device="cuda:0", dtype=torch.bfloat16).from_weights(
            integers, scales, zeros
        )
        n, k = integers.shape
        grouped = integers.view(n, scales.shape[1], -1).float()
        weight = ((grouped - zeros[..., None].float()) * scales[..., None].float()).view(n, k)
        x = drawn(9, 2, k).bfloat16()
        exact = x.float() @ weight.T
        if float((layer(x).float() - exact).abs().max()) > LIKE * float(exact.abs().max()):
            raise Skip("gemlite computes something else from these weights")
        return layer


def beside_gemlite(m: int, n: int, k: int, machine: GpuMachine) -> Figures:
    """4-bit weights of one quantisation, ours beside gemlite's."""
    integers, scales, zeros = quantise_w4(drawn(2, n, k), 128, False)
    assert zeros is not None
    x = drawn(1, m, k).bfloat16()
    theirs = gemlite_linear(integers, scales, zeros)
    ours = time_gemm("w4a16", m, n, k, machine)
    return ours | beside(ours["us"], {"gemlite": lambda: theirs(x)})


def w4_goal(m: int, n: int, k: int) -> Goal:
    if m > FEW:
        return Goal("speedup", 0.95, 1.0)
    return Goal("speedup", 1.7 if n == k else 2.2, 3.3)


def times(_dry: bool) -> list[GpuCase]:

    def case(title: str, kind: LinearFormat, m: int, n: int, k: int, goal: Goal | None = None) -> GpuCase:
        return GpuCase(f"{title} {m}x{n}x{k}", partial(time_gemm, kind, m, n, k), goal)

    found = [case("w4", "w4a16", m, n, k, w4_goal(m, n, k)) for n, k in SHAPES for m in W4_ROWS]
    for m in OTHER_ROWS:
        goal = Goal("speedup", 1.0, 1.4) if m <= 16 else Goal("speedup", 0.95, 1.05)
        found += [case("w8", "w8a16", m, *SHAPES[1]), case("fp8", "fp8", m, *SHAPES[1], goal)]
        found.append(case("int8", "w8a8", m, *SHAPES[1]))
    return found + [
        GpuCase(f"rival: gemlite w4 {m}x{n}x{k}", partial(beside_gemlite, m, n, k))
        for n, k in SHAPES[:2]
        for m in GEMLITE_ROWS
    ]
