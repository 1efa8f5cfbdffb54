"""Mistral and Ministral."""

from ..config import Config
from ..spec import ModelSpec
from .decoder import decoder, sliding_layers, with_windows


def mistral(config: Config) -> ModelSpec:
    """Mistral 7B and its descendants; `sliding_window` applies to all layers, null turns it off."""
    config = config.with_defaults(num_key_value_heads=8, sliding_window=4096)
    spec, window = decoder(config), config.optional_size("sliding_window")
    if set(config.texts("layer_types") or ()) - {"full_attention" if window is None else "sliding_attention"}:
        raise config.invalid("layer_types", f"contradicts sliding_window = {window}; remove one of the two")
    return with_windows(spec, window, [True] * spec.num_layers)


def ministral(config: Config) -> ModelSpec:
    """Ministral 8B: some layers have the window."""
    config = config.with_defaults(num_key_value_heads=8, sliding_window=4096)
    spec, window = decoder(config), config.optional_size("sliding_window")
    sliding = sliding_layers(config, spec, lambda index: window is not None)
    if any(sliding) and window is None:
        raise config.invalid("layer_types", "sliding_attention needs a sliding_window")
    return with_windows(spec, window, sliding)


def ministral3(config: Config) -> ModelSpec:
    """Ministral 3: YaRN, and queries that grow with the logarithm of their position."""
    config = config.with_defaults(
        num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5, max_position_embeddings=262_144,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
    )  # fmt: skip
    spec, window = decoder(config), config.optional_size("sliding_window")
    # YaRN's factor and length describe the context that config.json states already.
    return with_windows(spec, window, [True] * spec.num_layers)
