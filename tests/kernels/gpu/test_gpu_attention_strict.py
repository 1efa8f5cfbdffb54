"""Bits that must not depend on others: of a decode row on its batch, of a prompt's rows on how it was cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triolet.kernels.paged_attention import gpu_launch
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_ragged import Form, Ragged, RaggedPart

from .cases import small_launch

FORMS = [
    Form(2, 1, 64, "fp32"), Form(2, 1, 64, window=100), Form(2, 1, 64, "fp8", soft_cap=20.0),
    Form(2, 1, 64, "int8", window=70), Form(2, 1, 64, rope_dim=16),
]  # fmt: skip
PLAIN = FORMS[0]
OTHERS = [RaggedPart.drawn(PLAIN, 9 + seed, *chunk) for seed, chunk in enumerate([(1, 200), (1, 70), (4, 9), (1, 300)])]
ROW = RaggedPart.drawn(PLAIN, 0, 1, 1100)  # 18 pages: 9 parts of 2
PROMPT = RaggedPart.drawn(PLAIN, 1, 150, 150)


def result_beside(
    mine: RaggedPart, others: list[RaggedPart], programs: int, strict: bool, form: Form = PLAIN
) -> Tensor:
    """What `mine` gets as the last sequence of a batch."""
    batch = Ragged(form, [*others, mine], seed=len(others))
    out = batch.result(small_launch(programs, strict=strict, rows=64))[: batch.real]
    assert not bool(out.isnan().any())
    return out[-len(mine.q) :]


def check_row(alone: Tensor, *beside: tuple[list[RaggedPart], int], form: Form = PLAIN) -> None:
    """Strict: the same bits beside others, and by so many programs."""
    for others, programs in beside:
        assert torch.equal(result_beside(ROW, others, programs, True, form), alone)


@pytest.mark.parametrize("form", FORMS)
def test_strict_decode_rows_are_the_same_in_any_batch_and_by_any_programs(form: Form) -> None:
    alone = result_beside(ROW, [], 3, True, form)
    check_row(alone, ([], 1), ([], 12), (OTHERS, 3), (OTHERS[:1], 4), form=form)


def test_a_balanced_plan_cuts_a_row_by_its_batch() -> None:
    """So that the test above can tell."""
    assert not torch.equal(result_beside(ROW, OTHERS, 3, False), result_beside(ROW, [], 3, False))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("begin = tl.cdiv(page - first, split) * split", "begin = page - first"),
        ("tl.minimum(begin + split, pages)", "tl.minimum(begin + share, pages)"),
    ],
)
def test_a_planted_fault_shows(old: str, new: str) -> None:
    """By other bits, or a row for which nothing is written."""
    alone = result_beside(ROW, [], 12, True)
    with fault(gpu_launch, "decode_kernel", old, new), pytest.raises(AssertionError):
        check_row(alone, ([], 4), (OTHERS, 1))


def cut_results(cuts: list[int], strict: bool, form: Form, others: list[RaggedPart]) -> Tensor:
    """The prompt's rows, computed in chunks of so many tokens, each beside the same others."""
    begin, parts = 0, list[Tensor]()
    for count in cuts:
        end = begin + count
        chunk = RaggedPart(PROMPT.q[begin:end], PROMPT.keys[:, :end], PROMPT.values[:, :end])
        parts.append(result_beside(chunk, others, 3, strict, form))
        begin = end
    assert begin == len(PROMPT.q)
    return torch.cat(parts)


@pytest.mark.parametrize(("form", "strict"), [(form, True) for form in FORMS] + [(PLAIN, False)])
def test_a_prompt_has_the_same_bits_however_it_is_cut(form: Form, strict: bool) -> None:
    whole = cut_results([150], strict, form, [])
    assert torch.equal(cut_results([64, 86], strict, form, []), whole)
    assert torch.equal(cut_results([2, 100, 48], strict, form, OTHERS[1:3]), whole)


def test_a_chunk_of_one_token_is_a_decode_row_and_adds_up_otherwise() -> None:
    """Why no prompt's chunk may be a single token where its bits must not depend on the cuts."""
    cut, whole = (cut_results(cuts, True, PLAIN, []) for cuts in ([149, 1], [150]))
    assert torch.equal(cut[:149], whole[:149])
    assert not torch.equal(cut[149], whole[149])
    assert torch.allclose(cut[149], whole[149], atol=1e-6)
