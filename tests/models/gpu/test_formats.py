"""Whole models in every weight and cache format: the GPU suite's check, by a float64 model with the same roundings."""

from __future__ import annotations

import pytest

from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_model_run import Sizes
from triolet.loadtest.device.gpu_model_values import check_definition
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.stored import FLOAT32

# Of weights, of the cache.
FORMATS = [
    ("int8", "fp8"), ("int4", "bfloat16"), ("fp8", "int8"), ("w8a8", "bfloat16"), ("fp8-block", "bfloat16"),
    (FLOAT32, FLOAT32),
]  # fmt: skip
SIZES = Sizes(1, 12, 64, 1 << 20)


@pytest.mark.parametrize(("quantize", "cache"), FORMATS)
def test_log_probabilities(quantize: str, cache: str) -> None:
    check_definition(RehearsalDevice(), quantize, cache, 12, SIZES)


def test_float32_shows_a_matrix_that_is_off_by_a_hundredth() -> None:
    with pytest.raises(Wrong, match="off by"):
        check_definition(RehearsalDevice(), FLOAT32, FLOAT32, 12, SIZES, wrong_scale=1.01)
