"""The GEMMs alone are the step's own: on the activations that a step leaves behind they give its very logits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from triolet.kernels.simd.formats import WeightFormat
from triolet.loadtest.device.cpu_stages import GemmsAlone, measure
from triolet.loadtest.device.cpu_step import REFERENCE, make_batch, random_runner
from triolet.models.checkpoint.spec import alike

SPEC = msgspec.structs.replace(
    REFERENCE, vocab_size=300, hidden_size=128, layers=alike(2), num_heads=4, num_kv_heads=2, head_dim=32, mlp_size=192
)


@pytest.mark.parametrize("weight_format", ["int8", "int4", "bfloat16", "float32"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_the_gemms_alone_end_in_the_step_s_logits(weight_format: WeightFormat, sequences: int) -> None:
    threads = min(sequences, 2)  # a thread's copy of a single row may be old, if others did its work
    runner, weights = random_runner(weight_format, sequences=sequences, threads=threads, spec=SPEC)
    alone = GemmsAlone(runner, weights)
    batch = make_batch(runner, sequences, 1, 5)
    logits = runner.forward(batch).copy()
    assert np.isfinite(logits).all()
    outputs = {name: runner._memory.arrays[name].view(np.float32) for name in ("logits", "qkv", "gate_up")}
    for array in outputs.values():
        array.fill(np.nan)
    alone.run()
    np.testing.assert_array_equal(runner._memory.logits[:sequences, : SPEC.vocab_size], logits)
    for name, channels in (("qkv", 8 * 32), ("gate_up", 2 * 192)):
        assert np.isfinite(outputs[name][: sequences * channels]).all(), f"{name} was not computed"
    alone.close()
    runner.close()


def test_a_measurement_has_every_figure() -> None:
    found = measure(
        SPEC, "int8", sequences=1, context=5, threads=1, rounds=3, round_seconds=0.0
    )  # fmt: skip
    assert found["step_ms"] > 0
    assert found["gemms_ms"] > 0
    assert found["share_outside"] < 1
    assert (found["format"], found["sequences"], found["context"], found["rounds"]) == ("int8", 1, 5, 3)
