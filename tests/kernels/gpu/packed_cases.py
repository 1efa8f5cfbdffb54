"""What the tests of packed weights share: matrices, and checks of a product against the float64 definition."""

from __future__ import annotations

import torch

from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4, gemm_reference
from triolet.kernels.gemm.gpu_table import Library, launch_for
from triolet.kernels.gemm.gpu_weights import PackedLinear, pack_w4, pack_w8, quantise_int8, quantise_w4

from .gemm_cases import assert_as_good, drawn, fresh_workspace, rows_among_nan

Tensor = torch.Tensor
N = 128


def w4_case(k: int, group: int, symmetric: bool, n: int = N) -> tuple[PackedLinear, Tensor]:
    """Packed weights, and what they stand for."""
    integers, scales, zeros = quantise_w4(drawn(2, n, k) + 0.3, group, symmetric)
    return pack_w4(integers, scales, zeros, group), dequantised_w4(integers, scales, zeros, group)


def check_w4(
    rows: int = 5, k: int = 256, group: int = 128, symmetric: bool = True, *, n: int = N,
    capability: int = 90, extras: bool = False,
) -> None:  # fmt: skip
    weight, meant = w4_case(k, group, symmetric, n)
    x = rows_among_nan(rows, k)
    bias, residual = (drawn(3, n).bfloat16(), drawn(4, rows, n).bfloat16()) if extras else (None, None)
    workspace = fresh_workspace(workspace_bytes(weight, rows, capability))
    out = torch.full((rows, n), torch.nan, dtype=torch.bfloat16)
    gemm(x, weight, capability=capability, out=out, workspace=workspace, bias=bias, residual=residual)
    plain = x @ meant.bfloat16().T
    if bias is not None and residual is not None:
        plain = plain + bias + residual
    assert_as_good(out, plain, gemm_reference(x, meant, bias, residual))


def check_w8(rows: int = 5, k: int = 192, *, n: int = N, extras: bool = False) -> None:
    values = drawn(2, n, k)
    weight, meant = pack_w8(values), dequantised(*quantise_int8(values))
    x = rows_among_nan(rows, k)
    bias, residual = (drawn(3, n).bfloat16(), drawn(4, rows, n).bfloat16()) if extras else (None, None)
    out = gemm(x, weight, capability=90, bias=bias, residual=residual)
    plain = x @ meant.bfloat16().T
    if bias is not None and residual is not None:
        plain = plain + bias + residual
    assert_as_good(out, plain, gemm_reference(x, meant, bias, residual))


def check_unpacked(weight: PackedLinear, meant: Tensor) -> None:
    """x = identity, and many rows of nothing: the product is the unpacked matrix, rounded once."""
    x = torch.eye(1025, weight.k, dtype=torch.bfloat16)
    out = gemm(x, weight, capability=90)
    assert torch.equal(out[: weight.k], meant.T.float().bfloat16())
    assert isinstance(launch_for(weight.format, 90, len(x), strict=False), Library)
