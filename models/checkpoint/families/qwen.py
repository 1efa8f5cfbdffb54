"""Qwen2, Qwen2.5 and Qwen3, the dense ones."""

from ..config import Config
from ..spec import ModelSpec
from .decoder import decoder, sliding_layers, with_windows


def qwen2(config: Config) -> ModelSpec:
    """Qwen2 and Qwen2.5: always a bias on q, k and v, never on o."""
    config = config.with_defaults(num_key_value_heads=32)
    config.must_be("attention_bias", True, remedy="Qwen2 always has a bias on q, k and v")
    return _with_window(config, decoder(config, reads=("attention_bias",), qkv_bias=True))


def qwen3(config: Config) -> ModelSpec:
    """Qwen3: q and k are normalised per head, head_dim is free (default 128)."""
    config = config.with_defaults(num_key_value_heads=32, head_dim=128)
    bias = config.flag("attention_bias", False)
    spec = decoder(config, reads=("attention_bias",), qkv_bias=bias, out_bias=bias, qk_norm="head")
    return _with_window(config, spec)


def _with_window(config: Config, spec: ModelSpec) -> ModelSpec:
    """The window is off unless `use_sliding_window`; the first `max_window_layers` layers (default 28) have none."""
    config = config.with_defaults(sliding_window=4096)
    window = config.optional_size("sliding_window") if config.flag("use_sliding_window", False) else None
    first = config.whole("max_window_layers", 28)
    sliding = sliding_layers(config, spec, lambda index: window is not None and index >= first)
    if any(sliding) and window is None:
        raise config.invalid("layer_types", "sliding_attention needs use_sliding_window = true and a sliding_window")
    return with_windows(spec, window, sliding)
