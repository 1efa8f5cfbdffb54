"""The parts of a cut row are added by whoever finishes last: in any order of the programs to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triolet.kernels.paged_attention import gpu_decode, gpu_launch

from .arrivals import ORDERS, arriving
from .attention_batch import drawn_batch, small_launch
from .mutants import mutated

CHUNKS = [(1, 700), (1, 64), (1, 450), (3, 80)]
PROGRAMS = 16


@pytest.mark.parametrize("strict", [False, True])
def test_the_order_of_programs_changes_no_bit(strict: bool) -> None:
    batch, launch = drawn_batch(CHUNKS, 4, 2), small_launch(PROGRAMS, strict=strict)
    assert batch.passes(launch)
    results: list[torch.Tensor] = []
    for order in ORDERS:
        with arriving(order):
            results.append(batch.attend(launch)[:-1])
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_that_the_last_part_were_the_last_to_be_done_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, launch = drawn_batch(CHUNKS, 4, 2), small_launch(PROGRAMS)
    fault = mutated(gpu_decode.decode_kernel, "is_last(counter, parts)", "stop == pages", tmp_path)
    monkeypatch.setattr(gpu_launch, "decode_kernel", fault)
    assert batch.passes(launch)
    with arriving("backwards"):
        assert not batch.passes(launch)


def test_layers_share_a_plan_and_its_counts() -> None:
    batch, launch = drawn_batch(CHUNKS, 4, 2), small_launch(PROGRAMS)
    assert torch.equal(batch.attend(launch, layers=3)[:-1], batch.attend(launch)[:-1])


def test_a_row_in_more_parts_than_are_added_at_once() -> None:
    batch = drawn_batch([(1, 64 * 40 - 3)], 2, 1, 64, dtype=torch.float32)
    assert batch.passes(small_launch(40))
    assert batch.passes(small_launch(40, strict=True))
