"""Bits that must not depend on others: of a decode row on its batch, of a prompt's rows on how it was cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triolet.kernels.paged_attention import gpu_decode, gpu_launch

from .attention_batch import BF16, FP8, INT8, Batch, Sequence, drawn_sequence, small_launch
from .mutants import mutated

OTHERS = [drawn_sequence(9 + seed, *size, 2, 1, 64) for seed, size in enumerate([(1, 200), (1, 70), (4, 9), (1, 300)])]
ROW = drawn_sequence(0, 1, 1100, 2, 1, 64)  # 18 pages: 9 parts of 2
PROMPT = drawn_sequence(1, 150, 150, 2, 1, 64)
# (activations, cache, window, soft cap, dimensions of latent attention's rotated key)
FORMS = [
    (torch.float32, None, 0, 0.0, 0), (BF16, None, 100, 0.0, 0), (BF16, FP8, 0, 20.0, 0), (BF16, INT8, 70, 0.0, 0),
    (BF16, None, 0, 0.0, 16),
]  # fmt: skip
Form = tuple[torch.dtype, torch.dtype | None, int, float, int]


def result_beside(mine: Sequence, others: list[Sequence], programs: int, strict: bool, form: Form = FORMS[0]) -> Tensor:
    """What `mine` gets as the last sequence of a batch."""
    dtype, cache, window, soft_cap, rope_dim = form
    batch = Batch([*others, mine], dtype=dtype, cache=cache, seed=len(others), rope_dim=rope_dim)
    out = batch.attend(small_launch(programs, strict=strict, rows=64), window, soft_cap)[: int(batch.starts[-1])]
    assert not bool(out.isnan().any())
    return out[-len(mine.q) :]


@pytest.mark.parametrize("form", FORMS)
def test_strict_decode_rows_are_the_same_in_any_batch_and_by_any_programs(form: Form) -> None:
    alone = result_beside(ROW, [], 3, True, form)
    for others, programs in [([], 1), ([], 12), (OTHERS, 3), (OTHERS[:1], 4)]:
        assert torch.equal(result_beside(ROW, others, programs, True, form), alone)


def test_a_balanced_plan_cuts_a_row_by_its_batch() -> None:
    """So that the test above can tell."""
    assert not torch.equal(result_beside(ROW, OTHERS, 3, False), result_beside(ROW, [], 3, False))


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        (gpu_decode.decode_kernel, "begin = tl.cdiv(page - first, split) * split", "begin = page - first"),
        (gpu_decode.decode_kernel, "tl.minimum(begin + split, pages)", "tl.minimum(begin + share, pages)"),
    ],
)  # fmt: skip
def test_a_planted_fault_shows(
    kernel: Any, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = result_beside(ROW, [], 12, True)
    monkeypatch.setattr(gpu_launch, kernel.fn.__name__, mutated(kernel, old, new, tmp_path))
    try:
        different = [
            not torch.equal(result_beside(ROW, others, programs, True), alone)
            for others, programs in [([], 4), (OTHERS, 1)]
        ]
    except AssertionError:  # nothing was written for some row
        different = [True]
    assert any(different)


def cut_results(cuts: list[int], strict: bool, form: Form, others: list[Sequence]) -> Tensor:
    """The prompt's rows, computed in chunks of so many tokens, each beside the same others."""
    begin, parts = 0, list[Tensor]()
    for count in cuts:
        end = begin + count
        chunk = Sequence(PROMPT.q[begin:end], PROMPT.keys[:, :end], PROMPT.values[:, :end])
        parts.append(result_beside(chunk, others, 3, strict, form))
        begin = end
    assert begin == len(PROMPT.q)
    return torch.cat(parts)


@pytest.mark.parametrize(("form", "strict"), [(form, True) for form in FORMS] + [(FORMS[0], False)])
def test_a_prompt_has_the_same_bits_however_it_is_cut(form: Form, strict: bool) -> None:
    whole = cut_results([150], strict, form, [])
    assert torch.equal(cut_results([64, 86], strict, form, []), whole)
    assert torch.equal(cut_results([2, 100, 48], strict, form, OTHERS[1:3]), whole)


def test_a_chunk_of_one_token_is_a_decode_row_and_adds_up_otherwise() -> None:
    """Why no prompt's chunk may be a single token where its bits must not depend on the cuts."""
    form = FORMS[0]
    cut, whole = cut_results([149, 1], True, form, []), cut_results([150], True, form, [])
    assert torch.equal(cut[:149], whole[:149])
    assert not torch.equal(cut[149], whole[149])
    assert torch.allclose(cut[149], whole[149], atol=1e-6)
