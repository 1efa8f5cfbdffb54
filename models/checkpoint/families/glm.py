"""GLM-4: half of each head is rotated, in interleaved pairs."""

from typing import Any

from ..config import Config
from ..spec import ModelSpec, WeightNames
from .decoder import decoder, refuse_window

GATE_UP = "mlp.gate_up_proj"


def glm(config: Config) -> ModelSpec:
    """GLM-4 9B of 2024."""
    return _glm(config, names=WeightNames(gate_up=GATE_UP))


def glm4(config: Config) -> ModelSpec:
    """GLM-4 and GLM-Z1 of 2025: norms behind each block as well."""
    names = WeightNames(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm", gate_up=GATE_UP)
    return _glm(config, names=names)


def _glm(config: Config, **differences: Any) -> ModelSpec:  # Any: values of ModelSpec's fields
    refuse_window(config)
    config = config.with_defaults(
        num_key_value_heads=2, head_dim=128, rms_norm_eps=1.5625e-7, partial_rotary_factor=0.5, attention_bias=True
    )
    return decoder(
        config, reads=("attention_bias", "partial_rotary_factor"), interleaved_rotary=True,
        qkv_bias=config.flag("attention_bias", True), **differences,
    )  # fmt: skip
