"""The parts of a cut row are added by whoever finishes last: in any order of the programs to the same bits."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.paged_attention import gpu_launch
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_ragged import Form, Ragged

from .arrivals import ORDERS, arriving
from .cases import small_launch

CHUNKS = [(1, 700), (1, 64), (1, 450), (3, 80)]
PROGRAMS = 16
FORM = Form(heads=4, kv_heads=2, size=64)


@pytest.mark.parametrize("strict", [False, True])
def test_the_order_of_programs_changes_no_bit(strict: bool) -> None:
    batch, launch = Ragged.drawn(FORM, CHUNKS), small_launch(PROGRAMS, strict=strict)
    batch.check(launch)
    results: list[torch.Tensor] = []
    for order in ORDERS:
        with arriving(order):
            results.append(batch.result(launch)[:-1])
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_that_the_last_part_were_the_last_to_be_done_is_refused() -> None:
    batch, launch = Ragged.drawn(FORM, CHUNKS), small_launch(PROGRAMS)
    with fault(gpu_launch, "decode_kernel", "is_last(counter, parts)", "stop == pages"):
        batch.check(launch)
        with arriving("backwards"), pytest.raises(Wrong):
            batch.check(launch)


def test_layers_share_a_plan_and_its_counts() -> None:
    batch, launch = Ragged.drawn(FORM, CHUNKS), small_launch(PROGRAMS)
    assert torch.equal(batch.result(launch, layers=3)[:-1], batch.result(launch)[:-1])


@pytest.mark.parametrize("strict", [False, True])
def test_a_row_in_more_parts_than_are_added_at_once(strict: bool) -> None:
    Ragged.drawn(Form(2, 1, 64, "fp32"), [(1, 64 * 40 - 3)]).check(small_launch(40, strict=strict))
