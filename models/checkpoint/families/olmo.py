"""OLMo 2 and 3: no norms before the blocks but behind them; q and k are normalised over all heads."""

from msgspec.structs import replace

from ..config import Config
from ..rope import by_layer_type, read_rope
from ..spec import ModelSpec, WeightNames
from .decoder import decoder, refuse_window, sliding_layers, with_windows

BEHIND = WeightNames(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


def olmo2(config: Config) -> ModelSpec:
    refuse_window(config)
    return _olmo(config)


def olmo3(config: Config) -> ModelSpec:
    """As OLMo 2, with a window in three of four layers; a scaled rotation is for the others alone."""
    config = config.with_defaults(sliding_window=4096)
    whole, local = by_layer_type(config, 5e5, config.number("rope_theta", 5e5, above=1.0))
    spec = _olmo(whole)
    sliding = sliding_layers(config, spec, lambda index: (index + 1) % 4 != 0)
    rope, _ = read_rope(local, spec.max_position)
    layers = (replace(layer, rope=rope) if one else layer for layer, one in zip(spec.layers, sliding, strict=True))
    return with_windows(replace(spec, layers=tuple(layers)), config.optional_size("sliding_window"), sliding)


def _olmo(config: Config) -> ModelSpec:
    config = config.with_defaults(rms_norm_eps=1e-5)
    bias = config.flag("attention_bias", False)
    return decoder(config, reads=("attention_bias",), names=BEHIND, qkv_bias=bias, out_bias=bias, qk_norm="row")
