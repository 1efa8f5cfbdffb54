"""What the GEMM tests share: inputs, and a check that a result is as good as plain torch's in the same precision."""

from __future__ import annotations

import torch

from triolet.kernels.gemm.gpu_operands import COUNTER_BYTES

Tensor = torch.Tensor


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_among_nan(rows: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x whose rows are followed by NaN in memory: a read behind the last column shows."""
    wide = torch.full((rows, k + 128), torch.nan, dtype=dtype)
    wide[:, :k] = drawn(1, rows, k).to(dtype)
    return wide[:, :k]


def fresh_workspace(size: int) -> Tensor:
    """NaN behind counters that are 0."""
    workspace = torch.full((size,), 255, dtype=torch.uint8)
    workspace[:COUNTER_BYTES] = 0
    return workspace


def largest_error(result: Tensor, exact: Tensor) -> float:
    """NaN, which compares as false, where the result has one."""
    return float((result.double() - exact).abs().max())


def assert_as_good(result: Tensor, plain: Tensor, exact: Tensor) -> None:
    """The error is at most twice that of a plain expression, which rounds the same inputs and outputs."""
    assert largest_error(result, exact) <= 2 * largest_error(plain, exact)
