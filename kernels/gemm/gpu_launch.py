"""The GEMMs of a linear layer on the GPU: y = x W^T (+ bias) (+ residual), one launcher per weight format.

    x          [M, K], contiguous rows (which may lie further apart); bfloat16, int8 or e4m3 as the format says
    x_scales   float32: [M], or [] for the whole tensor, or [M, K / 128] with block-scaled weights
    out        [M, N] bfloat16, contiguous; residual [M, N] may be out itself; bias [N]. Or float32, for logits: the
               sums as they are, not rounded to bfloat16; then without bias and residual
    workspace  one-dimensional uint8 of at least `workspace_bytes`; layers of one stream may share it
    strict     the bits of a row's results do not depend on the other rows

Where out or workspace is not given it is allocated. The capability (80, 90) chooses the launch and is never queried.
"""

from __future__ import annotations

import torch

from .gpu_launch_packed import launch_packed
from .gpu_launch_plain import launch_plain
from .gpu_operands import checked, launches_of, workspace_bytes
from .gpu_table import LinearFormat, launch_for
from .gpu_weights import PackedLinear

Tensor = torch.Tensor
__all__ = ["bf16_gemm", "fp8_gemm", "launches_of", "w4a16_gemm", "w8a8_gemm", "w8a16_gemm", "workspace_bytes"]


def w4a16_gemm(
    x: Tensor, weight: PackedLinear, *, capability: int, out: Tensor | None = None, workspace: Tensor | None = None,
    bias: Tensor | None = None, residual: Tensor | None = None, strict: bool = False,
) -> Tensor:  # fmt: skip
    """4-bit weights, bfloat16 activations."""
    operands = checked("w4a16", x, None, weight, out, workspace, bias, residual)
    launch_packed(operands, launch_for("w4a16", capability, len(x), strict))
    return operands.out


def w8a16_gemm(
    x: Tensor, weight: PackedLinear, *, capability: int, out: Tensor | None = None, workspace: Tensor | None = None,
    bias: Tensor | None = None, residual: Tensor | None = None, strict: bool = False,
) -> Tensor:  # fmt: skip
    """int8 weights with a scale per channel, bfloat16 activations."""
    operands = checked("w8a16", x, None, weight, out, workspace, bias, residual)
    launch_packed(operands, launch_for("w8a16", capability, len(x), strict))
    return operands.out


def w8a8_gemm(
    x: Tensor, x_scales: Tensor, weight: PackedLinear, *, capability: int, out: Tensor | None = None,
    workspace: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, strict: bool = False,
) -> Tensor:  # fmt: skip
    """int8 weights with a scale per channel, int8 activations with a scale per token. The integer sums are exact."""
    return _plain("w8a8", x, x_scales, weight, capability, out, workspace, bias, residual, strict)


def fp8_gemm(
    x: Tensor, x_scales: Tensor, weight: PackedLinear, *, capability: int, out: Tensor | None = None,
    workspace: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, strict: bool = False,
) -> Tensor:  # fmt: skip
    """e4m3 weights and activations, float32 sums. Raises ValueError on a device without float8."""
    if capability < 89:
        raise ValueError(
            f"float8 GEMM needs compute capability 8.9 or newer and this device has {capability / 10}: "
            "load the weights as int8 or 4-bit"
        )
    return _plain("fp8", x, x_scales, weight, capability, out, workspace, bias, residual, strict)


def bf16_gemm(
    x: Tensor, weight: PackedLinear, *, capability: int, out: Tensor | None = None, workspace: Tensor | None = None,
    bias: Tensor | None = None, residual: Tensor | None = None, strict: bool = False,
) -> Tensor:  # fmt: skip
    """bfloat16 weights and activations: the vendor's GEMM; under strict determinism ours, whose tiles are fixed."""
    return _plain("bf16", x, None, weight, capability, out, workspace, bias, residual, strict)


def _plain(
    kind: LinearFormat, x: Tensor, x_scales: Tensor | None, weight: PackedLinear, capability: int,
    out: Tensor | None, workspace: Tensor | None, bias: Tensor | None, residual: Tensor | None, strict: bool,
) -> Tensor:  # fmt: skip
    operands = checked(kind, x, x_scales, weight, out, workspace, bias, residual)
    launch_plain(operands, launch_for(kind, capability, len(x), strict))
    return operands.out
