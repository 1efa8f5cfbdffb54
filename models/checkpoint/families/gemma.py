"""Gemma 1, 2 and 3 (text): gains stored less 1, scaled embeddings, GeGLU; from 2 on also norms behind each block."""

from math import sqrt
from typing import Any

from msgspec.structs import replace

from ..config import Config
from ..rope import by_layer_type, read_rope
from ..spec import ModelSpec, WeightNames
from .decoder import decoder, refuse_window, sliding_layers, with_windows

TANH = "gelu_pytorch_tanh"
AROUND = WeightNames(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def gemma(config: Config) -> ModelSpec:
    """Gemma 1. Its files say "gelu" and mean the tanh approximation."""
    refuse_window(config)
    config = config.with_defaults(num_key_value_heads=16, hidden_act=TANH)
    spec = _gemma(config, activation="hidden_act")
    return replace(spec, activation="gelu_tanh") if spec.activation == "gelu" else spec


def gemma2(config: Config) -> ModelSpec:
    """Gemma 2: soft caps; every other layer, from the first on, has the window."""
    config = _later(config).with_defaults(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    scores, logits = (config.optional_number(key) for key in CAPS)
    spec = _gemma(config, reads=CAPS, names=AROUND, query_scale=_scale(config), score_cap=scores, logit_cap=logits)
    sliding = sliding_layers(config, spec, lambda index: index % 2 == 0)
    return with_windows(spec, config.optional_size("sliding_window"), sliding)


def gemma3(config: Config) -> ModelSpec:
    """Gemma 3 (text): q and k normalised per head; the layers with the window have a rotation of their own."""
    config = _later(config)
    whole, local = by_layer_type(config, 1e6, config.number("rope_local_base_freq", 1e4, above=1.0))
    cap = config.optional_number("final_logit_softcapping")
    spec = _gemma(
        whole, reads=("final_logit_softcapping",), names=AROUND, qk_norm="head", query_scale=_scale(config),
        logit_cap=cap,
    )  # fmt: skip
    every = config.size("sliding_window_pattern", 6)
    sliding = sliding_layers(config, spec, lambda index: (index + 1) % every != 0)
    rope, _ = read_rope(local, spec.max_position)
    layers = (replace(layer, rope=rope) if one else layer for layer, one in zip(spec.layers, sliding, strict=True))
    return with_windows(replace(spec, layers=tuple(layers)), config.optional_size("sliding_window"), sliding)


def _scale(config: Config) -> float:
    return 1 / sqrt(config.number("query_pre_attn_scalar", 256.0))


def _later(config: Config) -> Config:
    return config.with_defaults(num_key_value_heads=4, hidden_activation=TANH, sliding_window=4096)


def _gemma(
    config: Config, *, reads: tuple[str, ...] = (), activation: str = "hidden_activation", **differences: Any
) -> ModelSpec:  # Any: values of ModelSpec's fields
    config = config.with_defaults(head_dim=256, tie_word_embeddings=True)
    bias = config.flag("attention_bias", False)
    return decoder(
        config, reads=("attention_bias", *reads), activation=activation, qkv_bias=bias, out_bias=bias, norm_offset=1.0,
        embedding_factor=sqrt(config.size("hidden_size")), **differences,
    )  # fmt: skip
