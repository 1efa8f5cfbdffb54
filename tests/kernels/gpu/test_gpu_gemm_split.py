"""Split K, added up by the last program of a tile to arrive: bits and counters do not depend on who that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.kernels.gemm import gpu_epilogue
from triolet.kernels.gemm.gpu_epilogue import is_last_of_tile, whole
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_operands import COUNTER_BYTES, with_room
from triolet.kernels.gemm.gpu_reference import dequantised, gemm_reference
from triolet.kernels.gemm.gpu_table import ROWS_AT_ONCE, STRICT, TABLES, Few, launch_for, split_of
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_fp8,
    pack_w4,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from triolet.kernels.gpu.arrival import is_last

from .arrivals import ORDERS, arriving
from .gemm_cases import assert_as_good, drawn, fresh_workspace
from .mutants import mutated
from .packed_cases import w4_case

Tensor = torch.Tensor
N, K, ROWS = 256, 1024, 40  # strict: several tiles of channels and of rows
PACK: dict[str, Callable[[Tensor], PackedLinear]] = {
    "w4a16": lambda weight: pack_w4(*quantise_w4(weight, 128, symmetric=False), 128),
    "w8a8": pack_w8a8,
    "fp8": lambda weight: pack_fp8(*quantise_fp8(weight, 1, 0)),
}


def check_orders(kind: str) -> None:
    """One workspace for all launches, as a graph's replays have it."""
    weight, x = PACK[kind](drawn(1, N, K)), drawn(2, ROWS, K)
    values, scales = {"w8a8": lambda: quantise_int8(x), "fp8": lambda: quantise_fp8(x, 1, 0)}.get(
        kind, lambda: (x.bfloat16(), None)
    )()
    more = {"bias": drawn(3, N).bfloat16(), "residual": drawn(4, ROWS, N).bfloat16()}
    launch = launch_for(weight.format, 90, ROWS, strict=True)
    assert isinstance(launch, Few)
    assert split_of(launch, N, K) > 2  # two parts have the same sum in either order
    workspace = fresh_workspace(workspace_bytes(weight, ROWS, 90, strict=True))
    results: list[Tensor] = []
    for order in ORDERS:
        out = torch.full((ROWS, N), torch.nan, dtype=torch.bfloat16)  # what nobody finishes shows
        with arriving(order):
            gemm(values, weight, scales, capability=90, strict=True, out=out, workspace=workspace, **more)
        assert not workspace[:COUNTER_BYTES].any()
        results.append(out)
    assert results[0].isfinite().all()
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("kind", PACK)
def test_the_order_of_arrival_changes_no_bit(kind: str) -> None:
    check_orders(kind)


def test_programs_that_arrive_backwards_are_added_up_right() -> None:
    weight, meant = w4_case(K, 128, False)
    x = drawn(2, 5, K).bfloat16()
    with arriving("backwards"):
        out = gemm(x, weight, capability=90)
    assert_as_good(out, x @ meant.bfloat16().T, gemm_reference(x, meant))


def test_scales_multiply_the_sum_of_all_parts() -> None:
    weight, (x, x_scales) = PACK["fp8"](drawn(1, N, K)), quantise_fp8(drawn(2, 5, K), 1, 0)
    assert weight.scales is not None
    out = gemm(x, weight, x_scales, capability=90)
    meant = dequantised(x, x_scales), dequantised(weight.weight, weight.scales)
    assert_as_good(out, (meant[0].float() @ meant[1].float().T).bfloat16(), gemm_reference(*meant))


def test_every_tile_of_a_launch_with_parts_has_a_counter() -> None:
    rows = [row for table in (*TABLES.values(), *STRICT.values()) for rows in table.values() for row in rows]
    for row in rows:
        if isinstance(row.launch, Few):
            most = min(row.up_to or ROWS_AT_ONCE, ROWS_AT_ONCE)
            for group in (0, 16, 32):
                weight = PackedLinear("w8a16", 64, K, torch.empty(0), group=group)
                launch = with_room(weight, row.launch)
                widest = max(n for n in range(64, 1 << 15, 64) if split_of(launch, n, 1 << 20) > 1)
                assert -(-widest // launch.block_n) * -(-most // launch.block_m) <= COUNTER_BYTES // 4


def rotated(folder: Path) -> Any:  # Any: a kernel
    """Adds the last program's own part first."""
    own = "split = tl.num_programs(1); own = tl.program_id(1).to(tl.int64); place += own * M * N; total = tl.load("
    (folder / "own").mkdir()
    first = mutated(whole, "total = tl.load(place", own + "place", folder / "own")
    return mutated(first, "tl.full((), part, tl.int64) * M", "((own + part) % split - own) * M", folder)


FAULTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "added by arrival": ("whole", rotated),
    "counters stay": ("is_last", lambda folder: mutated(is_last, "tl.store(counter, 0)", "pass", folder)),
    "the last but one finishes": ("is_last", lambda folder: mutated(is_last, "parts - 1", "parts - 2", folder)),
    "one counter for all tiles": (
        "is_last_of_tile",
        lambda folder: mutated(
            is_last_of_tile, "counters + tl.program_id(2)", "counters + 0 * tl.program_id(2)", folder
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checks_find_a_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS[fault]
    monkeypatch.setattr(gpu_epilogue, name, plant(tmp_path))
    with pytest.raises(AssertionError):
        check_orders("w4a16")
