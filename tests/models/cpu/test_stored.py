"""The CPU runner on weights as they are stored: mixed layouts, a tied embedding of codes, and what its plan says."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, make_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch
from triolet.models.reference.decoder import reference_logits

from ...kernels.stored_matrices import LAYOUTS, Held, held

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 200, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "eos_token_id": 3,
}  # fmt: skip
LAYOUT_OF = {
    "embed_tokens": "Q6_K", "q_proj": "Q4_K", "k_proj": "Q4_1", "v_proj": "Q6_K", "o_proj": "AWQ", "gate_proj": "Q8_0",
    "up_proj": "Q4_0", "down_proj": "Q4_K", "lm_head": "Q8_0",
}  # fmt: skip
TOKENS = np.array([5, 199, 0, 17, 44, 3], np.int32)
SIZES = CpuSizes(
    weight_format="stored", max_step_tokens=16, max_logit_rows=16, max_model_len=128, threads=2, num_blocks=4
)


def spec(**options: object) -> ModelSpec:
    return spec_from_config({**CONFIG, **options})


def weights(model: ModelSpec, *, widened: bool = False, wrong: str = "") -> DecoderWeights:
    """Random codes; `widened`: their float32. The matrix with `wrong` in its name has its minima left out."""

    def take(name: str, *shape: int) -> WeightArray:
        if len(shape) == 1:
            return np.random.default_rng(len(name)).uniform(0.5, 1.5, shape).astype(np.float32)
        kind = next(layout for part, layout in LAYOUT_OF.items() if part in name)
        size = 0.001 if LAYOUTS[kind].scales == "two-level" else 0.02
        matrix = held(LAYOUTS[kind], shape[0], shape[1], seed=sum(name.encode()), size=size)
        if wrong and wrong in name:
            found = matrix.codes(0, shape[0])
            assert found.minima is not None
            matrix = Held(matrix.layout, found._replace(minima=np.zeros_like(found.minima)))
        return matrix.rows(0, shape[0]) if widened else cast("WeightArray", matrix)

    return make_weights(model, take)


def logits(model: ModelSpec, given: DecoderWeights) -> npt.NDArray[np.float32]:
    runner = CpuRunner(model, given, SIZES)
    count = len(TOKENS)
    positions = np.arange(count, dtype=np.int32)
    tables = np.arange(4, dtype=np.int32)[None, : SIZES.table_width]
    starts = np.array([0, count], np.int32)
    batch = Batch(tokens=TOKENS, positions=positions, starts=starts, block_tables=tables, logit_rows=positions)
    found = runner.forward(batch).copy()
    runner.close()
    return found


def distance(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("tied", [True, False])
def test_codes_of_all_layouts_give_the_decoders_logits(tied: bool) -> None:
    """Against float32, activations of 8 bits differ by a few percent. Against the same weights in 16 bits, less."""
    model = spec(tie_word_embeddings=tied)
    found, widened = logits(model, weights(model)), weights(model, widened=True)
    by_16_bits = logits(model, widened)
    assert distance(found, reference_logits(model, widened, TOKENS.tolist())) < 0.05
    assert distance(found, by_16_bits) < 0.03
    for wrong in ("k_proj", "o_proj", "down_proj"):
        assert distance(logits(model, weights(model, wrong=wrong)), by_16_bits) > 0.05
