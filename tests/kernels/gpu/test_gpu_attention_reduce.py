"""The parts of a cut row are added by whoever finishes last: in any order of the programs to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from triton.runtime import interpreter

from triolet.kernels.paged_attention import gpu_decode, gpu_launch

from .attention_batch import drawn_batch, small_launch
from .mutants import mutated

PROGRAMS = 8
ORDERS = [list(range(PROGRAMS))[::-1], [3, 0, 7, 1, 6, 2, 5, 4]]
CHUNKS = [(1, 700), (1, 64), (1, 450), (3, 80)]


def run_in(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the programs of a grid's first axis are interpreted in this order, where they are as many."""
    builder: Any = interpreter.interpreter_builder  # Any: it is untyped
    kind = cast("Any", type(builder))
    set_grid_idx = kind.set_grid_idx

    def permuted(self: Any, x: int, y: int, z: int) -> None:  # Any: the builder
        set_grid_idx(self, order[x] if builder.grid_dim[0] == len(order) else x, y, z)

    monkeypatch.setattr(kind, "set_grid_idx", permuted)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_programs_changes_no_bit(order: list[int], strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, launch = drawn_batch(CHUNKS, 4, 2), small_launch(2 * PROGRAMS, strict=strict)
    in_order = batch.attend(launch)
    assert batch.passes(launch)
    run_in(order, monkeypatch)
    assert torch.equal(batch.attend(launch)[:-1], in_order[:-1])


def test_that_the_last_part_were_the_last_to_be_done_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, launch = drawn_batch(CHUNKS, 4, 2), small_launch(2 * PROGRAMS)
    fault = mutated(gpu_decode.decode_kernel, "is_last(count, parts)", "stop == pages", tmp_path)
    monkeypatch.setattr(gpu_launch, "decode_kernel", fault)
    assert batch.passes(launch)
    run_in(ORDERS[0], monkeypatch)
    assert not batch.passes(launch)


def test_layers_share_a_plan_and_its_counts() -> None:
    batch, launch = drawn_batch(CHUNKS, 4, 2), small_launch(2 * PROGRAMS)
    assert torch.equal(batch.attend(launch, layers=3)[:-1], batch.attend(launch)[:-1])


def test_a_row_in_more_parts_than_are_added_at_once() -> None:
    batch = drawn_batch([(1, 64 * 40 - 3)], 2, 1, 64, dtype=torch.float32)
    assert batch.passes(small_launch(40))
    assert batch.passes(small_launch(40, strict=True))
