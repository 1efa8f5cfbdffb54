"""How decode work is shared: evenly whatever the lengths, and, where strict, cut by a row's own length alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triolet.kernels.gpu.table import PAGE_TOKENS
from triolet.kernels.paged_attention import gpu_launch
from triolet.kernels.paged_attention.gpu_launch import plan_attention, plan_words
from triolet.kernels.paged_attention.gpu_plan import HEADER, RECORD
from triolet.kernels.paged_attention.gpu_table import choose_launch
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_ragged import Form, Ragged

from .cases import small_launch

# (tokens, length): rows of 2, 3, 1 and 5 pages between two prompt chunks and padding.
CHUNKS = [(1, 128), (9, 300), (1, 150), (1, 1), (4, 4), (1, 260), (0, 0)]


def planned(chunks: list[tuple[int, int]], programs: int, window: int = 0, share: int = 1) -> Tensor:
    launch = small_launch(programs, share=share)
    tokens, lengths = (torch.tensor(column, dtype=torch.int32) for column in zip(*chunks, strict=True))
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), tokens.cumsum(0).int()])
    plan = torch.full((plan_words(len(chunks), 1, launch),), -1, dtype=torch.int32)
    plan_attention(starts, lengths, plan, kv_heads=1, launch=launch, window=window)
    return plan


def expected(chunks: list[tuple[int, int]], programs: int, window: int = 0, share: int = 1) -> Tensor:
    """The plan by its definition; -1 where it says nothing."""
    rows = list[tuple[int, int, int]]()
    listed = 0
    for sequence, (tokens, length) in enumerate(chunks):
        if tokens == 1:
            pages = -(-length // PAGE_TOKENS) - (max(length - window, 0) // PAGE_TOKENS if window else 0)
            rows.append((sequence, listed, pages))
            listed += pages
    share = max(share, -(-listed // programs))
    plan = torch.full((plan_words(len(chunks), 1, small_launch(programs)),), -1, dtype=torch.int32)
    plan[:2] = torch.tensor([share, listed])
    for place, row in enumerate(rows):
        begin = int(HEADER) + int(RECORD) * place
        plan[begin : begin + 3] = torch.tensor(row)
    ends = [first + pages for _, first, pages in rows]
    after = plan[int(HEADER) + int(RECORD) * len(chunks) :]
    first_rows, counts = after[:programs], after[programs:]
    first_rows[:] = torch.tensor([sum(end <= program * share for end in ends) for program in range(programs)])
    counts[:] = 0
    return plan


# (programs, window, least share)
CASES = [(3, 0, 1), (4, 0, 1), (11, 0, 1), (20, 0, 1), (3, 60, 1), (5, 0, 4), (3, 0, 5)]


@pytest.mark.parametrize("case", CASES)
def test_plans_are_as_defined(case: tuple[int, int, int]) -> None:
    assert torch.equal(planned(CHUNKS, *case), expected(CHUNKS, *case))


@pytest.mark.parametrize(
    ("old", "new"),
    [("through[None, :] <=", "through[None, :] <"), ("window, 0) // PAGE", "window, 0) // (2 * PAGE)"),
     ("begin == 1)", "begin >= 1)"), ("sequence, 0, mask=real)", "sequence, 1, mask=real)")],
)  # fmt: skip
def test_a_planted_fault_changes_a_plan(old: str, new: str) -> None:
    with fault(gpu_launch, "plan_kernel", old, new):
        assert not all(torch.equal(planned(CHUNKS, *case), expected(CHUNKS, *case)) for case in CASES)


def test_a_long_sequence_among_short_ones_keeps_every_program_busy() -> None:
    """No program has more than a page above the mean."""
    plan = planned([(1, 131072)] + [(1, 4096)] * 31, 33)
    share, listed = (int(figure) for figure in plan[:2])
    assert listed == 2048 + 31 * 64
    assert share == -(-listed // 33)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lengths", torch.ones(2, dtype=torch.int32), "2 lengths need 3 starts"),
        ("keys", torch.zeros(4, 2, 32, 64, dtype=torch.bfloat16), "keys .* must both be"),
        ("key_scales", torch.ones(4, 2, 64), "key_scales: a torch.bfloat16 cache takes no scales"),
        ("form", Form(3, 2, 64), "heads 3 is no multiple of kv_heads 2"),
    ],
)
def test_bad_input_is_refused(name: str, value: object, message: str) -> None:
    batch = Ragged.drawn(Form(4, 2, 64), [(1, 3), (1, 5)])
    setattr(batch, name, value)
    with pytest.raises(ValueError, match=message):
        batch.result(small_launch(2))


def test_programs_fill_the_device_at_hand() -> None:
    h200, half = (choose_launch(90, 128, 2, 8, 8, multiprocessors=count) for count in (132, 66))
    assert h200.programs(8) == 3 * 132 // 8
    assert half.programs(8) == 3 * 66 // 8
    assert choose_launch(90, 128, 2, 8, 8, multiprocessors=2).programs(16) == 1


def test_the_launch_table() -> None:
    a100, h200 = (choose_launch(capability, 80, 1, 8, 8, multiprocessors=132) for capability in (80, 90))
    assert a100.e4m3_bits
    assert not h200.e4m3_bits
    assert choose_launch(90, 96, 1, 8, 8, multiprocessors=132) == h200
    few, many = (choose_launch(90, 128, 2, *size, multiprocessors=132, strict=True) for size in [(1, 1), (512, 8192)])
    assert few == many
    with pytest.raises(ValueError, match="head_dim 512"):
        choose_launch(90, 512, 2, 8, 8, multiprocessors=132)


def test_rows_that_the_copy_engine_cannot_fetch_are_read_by_pointers() -> None:
    """Of 100 values in bfloat16 a row has 200 bytes, of 104 a multiple of 16."""
    for head_dim, by_copy in ((100, False), (104, True)):
        launch = choose_launch(90, head_dim, 2, 8, 8, multiprocessors=132)
        assert (launch.decode.descriptors, launch.prefill.descriptors) == (by_copy, by_copy)
