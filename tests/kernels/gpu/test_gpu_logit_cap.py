"""Soft caps and factors of logits on the GPU against float64; planted faults fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triolet.kernels.logit_cap import gpu
from triolet.kernels.logit_cap.reference import logit_cap_reference

from .mutants import mutated

SIZE = gpu.TILE + 30


def check(factor: float, cap: float | None) -> None:
    logits = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(3)) * 20
    logits[0, :2] = torch.tensor([1e30, -1e30])
    expected = torch.from_numpy(logit_cap_reference(logits.numpy(), factor, cap))
    gpu.cap_logits(logits, factor, cap)
    assert bool(((logits.double() - expected).abs() <= 1e-6 * (expected.abs() + (cap or 0.0))).all())


@pytest.mark.parametrize(("factor", "cap"), [(1.0, 30.0), (0.3, None), (0.5, 6.0)])
def test_logits(factor: float, cap: float | None) -> None:
    check(factor, cap)


@pytest.mark.parametrize(
    ("old", "new"), [(" * factor", ""), ("2.0 * value / cap", "value / cap"), ("* SIZE", "* TILE")]
)
def test_planted_faults_fail(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "cap_kernel", mutated(gpu.cap_kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check(0.5, 6.0)


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits: must be contiguous torch\.float32 \[2, 4\]"):
        gpu.cap_logits(torch.zeros(2, 4, dtype=torch.bfloat16), 1.0, None)
