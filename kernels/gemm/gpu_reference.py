"""y = x W^T: the definition for every GPU format, float64, from the quantised values before they are packed."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def dequantised_w4(integers: Tensor, scales: Tensor, zeros: Tensor | None, group: int) -> Tensor:
    """(integer - zero) x scale, [N, K] float64."""
    zero = 8.0 if zeros is None else zeros.double().repeat_interleave(group, 1)
    return (integers.double() - zero) * scales.double().repeat_interleave(group, 1)


def dequantised(values: Tensor, scales: Tensor) -> Tensor:
    """Values times scales of the tensor [], of rows [rows], of row groups [rows, K / 128] or of 128 x 128 blocks."""
    rows, k = values.shape
    if scales.ndim < 2:
        return values.double() * scales.double().reshape(-1, 1)
    columns = scales.double().repeat_interleave(128, 1)[:, :k]
    if scales.shape[0] != rows:
        columns = columns.repeat_interleave(128, 0)[:rows]
    return values.double() * columns


def gemm_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """[M, K] and [N, K], already dequantised, to [M, N]."""
    y = x.double() @ weight.double().T
    if bias is not None:
        y = y + bias.double()
    return y if residual is None else y + residual.double()
