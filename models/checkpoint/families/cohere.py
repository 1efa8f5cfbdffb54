"""Cohere's Command models: LayerNorm, attention and MLP side by side, interleaved rotary pairs, a factor of logits."""

from typing import Any

from msgspec.structs import replace

from ..config import Config
from ..spec import ModelSpec, WeightNames
from .decoder import decoder, refuse_window, sliding_layers, with_windows


def cohere(config: Config) -> ModelSpec:
    """Command R and R+, Aya 23 and Expanse."""
    refuse_window(config)
    config = config.with_defaults(rope_theta=5e5)
    return _cohere(config, qk_norm="heads" if config.flag("use_qk_norm", False) else None)


def cohere2(config: Config) -> ModelSpec:
    """Command R7B and Command A: three of four layers have the window, the others no rotation."""
    config = config.with_defaults(sliding_window=4096)
    spec = _cohere(config)
    every = config.size("sliding_window_pattern", 4)
    sliding = sliding_layers(config, spec, lambda index: (index + 1) % every != 0)
    layers = (layer if one else replace(layer, rope=None) for layer, one in zip(spec.layers, sliding, strict=True))
    return with_windows(replace(spec, layers=tuple(layers)), config.optional_size("sliding_window"), sliding)


def _cohere(config: Config, **differences: Any) -> ModelSpec:  # Any: values of ModelSpec's fields
    config = config.with_defaults(layer_norm_eps=1e-5, logit_scale=0.0625, tie_word_embeddings=True)
    bias = config.flag("attention_bias", False)
    return decoder(
        config, reads=("attention_bias", "logit_scale"), eps="layer_norm_eps", layer_norm=True, parallel=True,
        names=WeightNames(before_mlp=None), interleaved_rotary=True, qkv_bias=bias, out_bias=bias,
        logit_factor=config.number("logit_scale", 1.0), **differences,
    )  # fmt: skip
