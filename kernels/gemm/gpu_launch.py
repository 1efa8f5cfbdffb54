"""The GEMM of a linear layer on the GPU: y = x W^T (+ bias) (+ residual).

    x          [M, K], contiguous rows (which may lie further apart); in the type of the format
    x_scales   float32: [M], or [] for the whole tensor, or [M, K / 128] with block-scaled weights
    out        [M, N] bfloat16, contiguous; residual [M, N] may be out itself; bias [N]. Or float32, for logits: the
               sums as they are, not rounded to bfloat16; then without bias and residual
    workspace  one-dimensional uint8 of at least `workspace_bytes`, zeros before its first use (COUNTER_BYTES of it in
               front; a launch leaves them so); layers of one stream may share it, and nobody else writes to it
    strict     the bits of a row's results do not depend on the other rows

If out or workspace is not given, it is allocated. The capability (80, 90) chooses the launch and is never queried.
"""

from __future__ import annotations

import torch

from ..gpu.table import E4M3_CAPABILITY
from .gpu_launch_packed import launch_packed
from .gpu_launch_plain import launch_plain
from .gpu_operands import COUNTER_BYTES, checked, launches_of, workspace_bytes
from .gpu_table import launch_for
from .gpu_weights import PackedLinear

Tensor = torch.Tensor
__all__ = ["COUNTER_BYTES", "gemm", "launches_of", "workspace_bytes"]


def gemm(
    x: Tensor, weight: PackedLinear, x_scales: Tensor | None = None, *, capability: int, out: Tensor | None = None,
    workspace: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, strict: bool = False,
) -> Tensor:  # fmt: skip
    """The product in the format of the weights.

    w4a16, w8a16   4-bit weights, or int8 with a scale per channel; bfloat16 activations
    w8a8           int8 with a scale per channel and one per token; the integer sums are exact
    fp8            e4m3, float32 sums. Raises ValueError on a device without float8
    bf16, fp32     the vendor's product; under strict determinism ours, whose tiles are fixed. Nothing of float32 goes
                   through TF32: the device forbids it (models/gpu/cuda.py), and ours says so to Triton
    """
    if weight.format == "fp8" and capability < E4M3_CAPABILITY:
        raise ValueError(
            f"float8 GEMM needs compute capability 8.9 or newer and this device has {capability / 10}: "
            "load the weights as int8 or 4-bit"
        )
    operands = checked(x, x_scales, weight, out, workspace, bias, residual)
    launch = launch_for(weight.format, capability, len(x), strict)
    (launch_packed if weight.format in ("w4a16", "w8a16") else launch_plain)(operands, launch)
    return operands.out
