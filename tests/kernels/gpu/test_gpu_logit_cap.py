"""Soft caps and factors of logits on the GPU: the suite's check; planted faults fail."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.logit_cap import gpu
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_rows import check_caps

from .cases import MACHINE

SIZE = gpu.TILE + 30


def test_logits() -> None:
    check_caps(2, SIZE, MACHINE)


@pytest.mark.parametrize(
    ("old", "new"), [(" * factor", ""), ("2.0 * value / cap", "value / cap"), ("* SIZE", "* TILE")]
)
def test_planted_faults_fail(old: str, new: str) -> None:
    with fault(gpu, "cap_kernel", old, new), pytest.raises(Wrong):
        check_caps(2, SIZE, MACHINE)


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits: must be contiguous torch\.float32 \[2, 4\]"):
        gpu.cap_logits(torch.zeros(2, 4, dtype=torch.bfloat16), 1.0, None)
