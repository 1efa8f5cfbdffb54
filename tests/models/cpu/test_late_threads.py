"""A step's result with far more threads than cores."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest

from triolet.kernels.simd.formats import WeightFormat

from .test_cpu import Chunk, batch_of, make_runner


@pytest.mark.parametrize("weight_format", ["float32", "int8"])
def test_threads_that_come_late_do_no_harm(weight_format: WeightFormat) -> None:
    """With far more threads than cores most are late: in the middle of a step of one row when one of many runs, or the
    other way round. The steps' order is drawn, their logits are those of a single thread. So is how many threads take
    part, which changes every few steps.
    """
    name, rng = "llama-gqa-ragged-mlp", np.random.default_rng(3)
    most = 16 * len(os.sched_getaffinity(0))
    alone, crowd = (make_runner(name, weight_format, threads) for threads in (1, most))
    for number in range(200):
        if number % 3 == 0 and number >= 50:  # at first all
            crowd.use_threads(int(rng.choice([1, 2, int(rng.integers(1, most)), most])))
        chunks = [
            Chunk(rng.integers(0, 957, int(rng.choice([1, 1, 2, 20]))).astype(np.int32), 0, [sequence])
            for sequence in range(int(rng.choice([1, 1, 5])))
        ]
        batch = batch_of(chunks)
        wanted = rng.permutation(len(batch.tokens))[: int(rng.integers(0, 4))].astype(np.int32)
        batch = msgspec.structs.replace(batch, logit_rows=wanted)
        np.testing.assert_array_equal(crowd.forward(batch), alone.forward(batch))
    alone.close()
    crowd.close()
