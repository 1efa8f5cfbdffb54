"""Rotary tables against transformers' own functions; every scaling differs from the plain one."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.rope import RopeSpec, inverse_frequencies, rope_tables
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.errors import CheckpointError

SCALINGS: dict[str, dict[str, Any]] = {  # as in config.json
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "linear": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.5},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn odd": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64,
        "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 0.7,
    },
    "yarn step": {  # both ends of the ramp fall on one dimension
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 6,
        "beta_fast": 2.0, "beta_slow": 1.0,
    },
}  # fmt: skip
CONFIG: dict[str, Any] = {  # Any: JSON
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 10, "hidden_size": 256,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
}  # fmt: skip


def rope_of(spec: ModelSpec) -> RopeSpec:
    (rope,) = {layer.rope for layer in spec.layers}
    assert rope is not None
    return rope


@pytest.mark.parametrize("name", list(SCALINGS))
def test_frequencies_are_those_of_transformers(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs: Any = LlamaRotaryEmbedding(LlamaConfig(**CONFIG, rope_parameters=dict(SCALINGS[name])))
    spec = spec_from_config({**CONFIG, "rope_parameters": SCALINGS[name]})
    rope = rope_of(spec)
    ours = inverse_frequencies(rope, spec.head_dim)
    # They compute in float32: a power, a few products, each rounded to 2^-24.
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=8 * 2.0**-24)
    assert abs(rope.attention_factor - theirs.attention_scaling) < 1e-12
    if name != "default":
        plain = inverse_frequencies(replace(rope, kind="default"), spec.head_dim)
        assert not np.allclose(ours, plain, rtol=1e-3)


FEW = {"rope_type": "factors", "factors": [1.0]}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 2.0}
GEMMA = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 64}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope_scaling": {**SCALINGS["yarn"], "factor": 1e308}}, r"factor = 1e\+308"),
        ({"rope_scaling": {**SCALINGS["yarn"], "beta_fast": 1e-320}}, "beta_fast = 1e-320"),
        ({"rope_scaling": FEW}, "factors = 1: numbers; expected 32"),
        ({**GEMMA, "rope_parameters": {"sliding_attention": FEW}}, "factors = 1: numbers; expected 32"),
        ({"rope_scaling": LONG, "original_max_position_embeddings": 1}, "original_max_position_embeddings = 1: exp"),
    ],
)
def test_what_makes_no_rotation_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        spec_from_config({**CONFIG, **options})


@pytest.mark.parametrize("name", list(SCALINGS))
def test_tables(name: str) -> None:
    """cos and sin of position times frequency, exact to float32, over the boundary of a piece."""
    spec = spec_from_config({**CONFIG, "rope_parameters": SCALINGS[name]})
    rope = rope_of(spec)
    table = rope_tables(rope, spec.head_dim, 5000)
    assert table.shape == (5000, spec.head_dim)
    assert table.dtype == np.float32
    for position in (0, 1, 4095, 4096, 4999):
        angles = position * inverse_frequencies(rope, spec.head_dim)
        expected = np.concatenate([np.cos(angles), np.sin(angles)]) * rope.attention_factor
        np.testing.assert_array_equal(table[position], expected.astype(np.float32))
