"""What this device can do at best, measured in the same run: every fraction in the suite is of one of these."""

from __future__ import annotations

from functools import partial

import torch

from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, Skip
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_timing import microseconds, timed

GEMMS = ((8192, 8192, 8192), (4096, 14336, 4096), (16384, 8192, 8192))  # M, N, K
COPIED = 2 << 30  # bytes, forty times the L2


def copy_bandwidth(_machine: GpuMachine) -> Figures:
    """Bytes read and bytes written, in GB/s."""
    source = torch.randint(-(1 << 31), (1 << 31) - 1, (COPIED // 4,), dtype=torch.int32)  # zeros draw less power
    target = torch.empty_like(source)
    copied = microseconds(lambda: target.copy_(source))
    return {"copy_gb_s": 2 * COPIED / copied / 1e3}


def small_graph(_machine: GpuMachine) -> Figures:
    """A graph of one tiny kernel: what every time here holds beside the work, in microseconds."""
    tiny = torch.zeros(1)
    return {"graph_us": microseconds(lambda: tiny.add_(1))}


def bf16_gemm(_machine: GpuMachine) -> Figures:
    rates: dict[str, float] = {}
    for m, n, k in GEMMS:
        x, w, out = drawn(1, m, k).bfloat16(), drawn(2, n, k).bfloat16(), torch.empty(m, n, dtype=torch.bfloat16)
        rates[f"{m}x{n}x{k}"] = 2e-6 * m * n * k / microseconds(partial(torch.mm, x, w.T, out=out))
    shape = max(rates, key=rates.__getitem__)
    return {"bf16_tflops": rates[shape], "bf16_shape": shape}


def fp8_gemm(machine: GpuMachine) -> Figures:
    """torch._scaled_mm with scales per tensor, with and without its fast accumulation."""
    machine.need("fp8")
    rates: dict[str, float] = {}
    refused: dict[str, str] = {}
    one = torch.ones(())
    scaled_mm = torch._scaled_mm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as other engines do
    for m, n, k in GEMMS:
        x, w = (drawn(seed, rows, k).to(torch.float8_e4m3fn) for seed, rows in ((1, m), (2, n)))
        for fast in (True, False):
            product = partial(
                scaled_mm, x, w.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )
            times, refused = timed({"scaled_mm": product})
            rates |= {f"{m}x{n}x{k}{' fast' if fast else ''}": 2e-6 * m * n * k / time for time in times.values()}
    if not rates:
        raise Skip(f"torch._scaled_mm does not run here: {refused}")
    shape = max(rates, key=rates.__getitem__)
    return {"fp8_tflops": rates[shape], "fp8_shape": shape}


def times(_dry: bool) -> list[GpuCase]:
    return [
        GpuCase("copy bandwidth", copy_bandwidth),
        GpuCase("one tiny graph", small_graph),
        GpuCase("best bf16 GEMM", bf16_gemm),
        GpuCase("best fp8 GEMM", fp8_gemm),
    ]
