"""Strict determinism and the shared workspace, for all weight formats: the bits of a row's results are the same in
every batch, whatever is left in the workspace, and a workspace for many rows serves fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from triolet.kernels.gemm.gpu_launch import (
    gemm,
    workspace_bytes,
)
from triolet.kernels.gemm.gpu_operands import bytes_of
from triolet.kernels.gemm.gpu_table import TABLES, LinearFormat, launch_for
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_fp32,
    pack_w4,
    pack_w8,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)

from .gemm_cases import drawn, fresh_workspace

Tensor = torch.Tensor
N, K, MOST = 128, 512, 512
PACK: dict[LinearFormat, Callable[[Tensor], PackedLinear]] = {
    "w4a16": lambda weight: pack_w4(*quantise_w4(weight, 128, symmetric=False), 128),
    "w8a16": pack_w8,
    "w8a8": pack_w8a8,
    "fp8": lambda weight: pack_fp8(*quantise_fp8(weight, 1, 0)),
    "bf16": pack_bf16,
    "fp32": pack_fp32,
}


def inputs(kind: LinearFormat, x: Tensor) -> tuple[Tensor, Tensor | None]:
    if kind == "fp8":
        return quantise_fp8(x, 1, 0)
    return quantise_int8(x) if kind == "w8a8" else (x if kind == "fp32" else x.bfloat16(), None)


def product(kind: LinearFormat, x: Tensor, weight: PackedLinear, **options: Any) -> Tensor:
    values, scales = inputs(kind, x)
    return gemm(values, weight, scales, capability=90, strict=True, **options)


def shared_workspace() -> Tensor:
    """For every format's layer and up to MOST rows, full of NaN."""
    sizes = (workspace_bytes(pack(drawn(1, N, K)), MOST, 90, strict=True) for pack in PACK.values())
    return fresh_workspace(max(sizes))


@pytest.mark.parametrize("kind", PACK)
def test_strict_results_are_the_same_bits_in_every_batch(kind: LinearFormat) -> None:
    weight, x, workspace = PACK[kind](drawn(1, N, K)), drawn(2, 70, K), shared_workspace()

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
    weight, x = PACK["w4a16"](drawn(1, N, K)), drawn(2, 70, K).bfloat16()
    together = gemm(x, weight, capability=90)
    assert not torch.equal(gemm(x[:17], weight, capability=90), together[:17])


@pytest.mark.parametrize("kind", ["w4a16", "fp8"])
def test_more_rows_than_a_launch_takes_share_the_workspace(kind: LinearFormat) -> None:
    weight, x = PACK[kind](drawn(1, N, K)), drawn(2, 257, K)
    workspace = shared_workspace()
    results = [product(kind, rows, weight, workspace=workspace) for rows in (x, x[:1], x[-1:])]
    assert torch.equal(results[0][[0, -1]], torch.cat(results[1:]))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", PACK)
def test_a_workspace_for_many_rows_serves_fewer(kind: LinearFormat, strict: bool) -> None:
    for n, k in ((4096, 4096), (1024, 14336), (28672, 4096), (200, 96)):
        weight = PackedLinear(kind, n, k, torch.empty(0))
        for capability in TABLES[kind]:
            size = workspace_bytes(weight, MOST, capability, strict)
            needed = [bytes_of(weight, rows, launch_for(kind, capability, rows, strict)) for rows in range(1, MOST + 1)]
            assert max(needed) == size
