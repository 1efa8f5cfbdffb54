"""The GEMMs alone are the step's own: on the activations that a step leaves behind they give its very logits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from triolet.kernels.simd.formats import WeightFormat
from triolet.loadtest.device.cpu_stages import GemmsAlone, measure
from triolet.loadtest.device.cpu_step import BLOCK, MODEL_LEN, REFERENCE, make_batch, random_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes

SPEC = msgspec.structs.replace(
    REFERENCE, vocab_size=300, hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, mlp_size=192
)


@pytest.mark.parametrize("weight_format", ["int8", "int4", "bfloat16", "float32"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_the_gemms_alone_end_in_the_step_s_logits(weight_format: WeightFormat, sequences: int) -> None:
    weights = random_weights(SPEC)
    blocks = sequences * MODEL_LEN // BLOCK
    sizes = CpuSizes(
        weight_format=weight_format,
        num_blocks=blocks,
        max_step_tokens=16,
        max_logit_rows=sequences,
        max_model_len=MODEL_LEN,
        threads=2,
    )
    runner = CpuRunner(SPEC, weights, sizes)
    alone = GemmsAlone(runner, weight_format, weights.embedding.ctypes.data, sequences, 2)
    batch = make_batch(sequences, 1, 5, SPEC, blocks)
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
        SPEC, random_weights(SPEC), "int8", sequences=1, context=5, threads=1, rounds=3, round_seconds=0.0
    )  # fmt: skip
    assert found["step_ms"] > 0
    assert found["gemms_ms"] > 0
    assert found["share_outside"] < 1
    assert (found["format"], found["sequences"], found["context"], found["rounds"]) == ("int8", 1, 5, 3)
