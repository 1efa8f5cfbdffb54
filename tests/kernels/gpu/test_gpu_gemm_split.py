"""Split K, added up by the last program of a tile to arrive: bits and counters do not depend on who that is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from triolet.kernels.gemm import gpu_epilogue
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_operands import COUNTER_BYTES, with_room
from triolet.kernels.gemm.gpu_reference import gemm_reference
from triolet.kernels.gemm.gpu_table import ROWS_AT_ONCE, STRICT, TABLES, Few, LinearFormat, launch_for, split_of
from triolet.kernels.gemm.gpu_weights import PackedLinear
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import drawn, equal, fault, no_worse, require
from triolet.loadtest.device.gpu_gemm import check_fp8, extras, fresh_workspace, inputs_of, w4, weight_of

from .arrivals import ORDERS, arriving
from .cases import MACHINE

Tensor = torch.Tensor
N, K, ROWS = 256, 1024, 40  # strict: several tiles of channels and of rows
FORMATS: tuple[LinearFormat, ...] = ("w4a16", "w8a8", "fp8")


def check_orders(kind: LinearFormat) -> None:
    """One workspace for all launches, as a graph's replays have it."""
    weight, (values, scales) = weight_of(kind, drawn(1, N, K)), inputs_of(kind, drawn(2, ROWS, K))
    launch = launch_for(weight.format, 90, ROWS, strict=True)
    assert isinstance(launch, Few)
    assert split_of(launch, N, K) > 2  # two parts have the same sum in either order
    workspace = fresh_workspace(workspace_bytes(weight, ROWS, 90, strict=True))
    results: list[Tensor] = []
    for order in ORDERS:
        out = torch.full((ROWS, N), torch.nan, dtype=torch.bfloat16)  # what nobody finishes shows
        with arriving(order):
            gemm(values, weight, scales, capability=90, strict=True, out=out, workspace=workspace, **extras(ROWS, N))
        require(not workspace[:COUNTER_BYTES].any(), "a counter stays")
        results.append(out)
    require(bool(results[0].isfinite().all()), "a tile was not finished")
    for result in results[1:]:
        equal(result, results[0], "the same product in another order")


@pytest.mark.parametrize("kind", FORMATS)
def test_the_order_of_arrival_changes_no_bit(kind: LinearFormat) -> None:
    check_orders(kind)


def test_programs_that_arrive_backwards_are_added_up_right() -> None:
    weight, meant = w4(128, False, drawn(2, N, K))
    x = drawn(2, 5, K).bfloat16()
    with arriving("backwards"):
        out = gemm(x, weight, capability=90)
    no_worse(out, x @ meant.bfloat16().T, gemm_reference(x, meant))


def test_scales_multiply_the_sum_of_all_parts() -> None:
    check_fp8("channel", False, (5, N, K), MACHINE)


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


# The last program's own part is added first.
OWN = "split = tl.num_programs(1); own = tl.program_id(1).to(tl.int64); place += own * M * N; total = tl.load("
FAULTS = {
    "added by arrival": [
        ("whole", "total = tl.load(place", OWN + "place"),
        ("whole", "tl.full((), part, tl.int64) * M", "((own + part) % split - own) * M"),
    ],
    "counters stay": [("is_last", "tl.store(counter, 0)", "pass")],
    "the last but one finishes": [("is_last", "parts - 1", "parts - 2")],
    "one counter for all tiles": [
        ("is_last_of_tile", "counters + tl.program_id(2)", "counters + 0 * tl.program_id(2)")
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_checks_find_a_planted_fault(name: str) -> None:
    with ExitStack() as stack:
        for edit in FAULTS[name]:
            stack.enter_context(fault(gpu_epilogue, *edit))
        stack.enter_context(pytest.raises(Wrong))
        check_orders("w4a16")
