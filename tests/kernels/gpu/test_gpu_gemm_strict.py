"""Strict determinism and the shared workspace, for all weight formats: the bits of a row's results are the same in
every batch, whatever is left in the workspace, and a workspace for many rows serves fewer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_operands import bytes_of
from triolet.kernels.gemm.gpu_table import TABLES, LinearFormat, launch_for
from triolet.kernels.gemm.gpu_weights import PackedLinear
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_gemm import fresh_workspace, inputs_of, weight_of

Tensor = torch.Tensor
N, K, MOST = 128, 512, 512
FORMATS: tuple[LinearFormat, ...] = ("w4a16", "w8a16", "w8a8", "fp8", "bf16", "fp32")


def product(kind: LinearFormat, x: Tensor, weight: PackedLinear, **options: Any) -> Tensor:
    values, scales = inputs_of(kind, x)
    return gemm(values, weight, scales, capability=90, strict=True, **options)


def shared_workspace() -> Tensor:
    """For every format's layer and up to MOST rows, full of NaN."""
    sizes = (workspace_bytes(weight_of(kind, drawn(1, N, K)), MOST, 90, strict=True) for kind in FORMATS)
    return fresh_workspace(max(sizes))


@pytest.mark.parametrize("kind", FORMATS)
def test_strict_results_are_the_same_bits_in_every_batch(kind: LinearFormat) -> None:
    weight, x, workspace = weight_of(kind, drawn(1, N, K)), drawn(2, 70, K), shared_workspace()

    def results(rows: Tensor, out_type: torch.dtype) -> Tensor:
        out = torch.empty(len(rows), N, dtype=out_type)
        return product(kind, rows, weight, out=out, workspace=workspace)

    for out_type in (torch.bfloat16, torch.float32) if kind != "fp32" else (torch.float32,):
        together = results(x, out_type)
        assert together.isfinite().all()
        for rows in (1, 3, 17):
            assert torch.equal(results(x[:rows], out_type), together[:rows])
            assert torch.equal(results(x[-rows:], out_type), together[-rows:])


def test_the_same_rows_differ_where_nobody_asked_for_strict() -> None:
    weight, x = weight_of("w4a16", drawn(1, N, K)), drawn(2, 70, K).bfloat16()
    together = gemm(x, weight, capability=90)
    assert not torch.equal(gemm(x[:17], weight, capability=90), together[:17])


@pytest.mark.parametrize("kind", ["w4a16", "fp8"])
def test_more_rows_than_a_launch_takes_share_the_workspace(kind: LinearFormat) -> None:
    weight, x = weight_of(kind, drawn(1, N, K)), drawn(2, 257, K)
    workspace = shared_workspace()
    results = [product(kind, rows, weight, workspace=workspace) for rows in (x, x[:1], x[-1:])]
    assert torch.equal(results[0][[0, -1]], torch.cat(results[1:]))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_workspace_for_many_rows_serves_fewer(kind: LinearFormat, strict: bool) -> None:
    for n, k in ((4096, 4096), (1024, 14336), (28672, 4096), (200, 96)):
        weight = PackedLinear(kind, n, k, torch.empty(0))
        for capability in TABLES[kind]:
            size = workspace_bytes(weight, MOST, capability, strict)
            needed = [bytes_of(weight, rows, launch_for(kind, capability, rows, strict)) for rows in range(1, MOST + 1)]
            assert max(needed) == size
