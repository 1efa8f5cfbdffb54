"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini."""

from ..config import Config
from ..spec import ModelSpec, WeightNames
from .decoder import decoder, with_windows


def phi3(config: Config) -> ModelSpec:
    """Fused matrices, partly rotated heads, and LongRoPE for long contexts, which old files call "su" or "yarn"."""
    config = config.with_defaults(rms_norm_eps=1e-5, partial_rotary_factor=1.0, original_max_position_embeddings=4096)
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.mapping(key)
        if scaling is not None and scaling.values.get("type", scaling.values.get("rope_type")) in ("su", "yarn"):
            own = {name: value for name, value in scaling.values.items() if name != "type"}
            config = Config({**config.values, key: {**own, "rope_type": "longrope"}})
    names = WeightNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
    spec = decoder(config, reads=("partial_rotary_factor",), names=names)
    window = config.whole("sliding_window", 0) or None  # GGUF files say 0
    return with_windows(spec, window, [True] * spec.num_layers)
