"""StableLM 2 and 3B: LayerNorm with a bias, a quarter of each head rotated."""

from ..config import Config
from ..spec import ModelSpec, WeightNames
from .decoder import decoder, refuse_window


def stablelm(config: Config) -> ModelSpec:
    refuse_window(config)
    config = config.with_defaults(num_key_value_heads=32, layer_norm_eps=1e-5, partial_rotary_factor=0.25)
    parallel = config.flag("use_parallel_residual", False)
    names = WeightNames(
        before_mlp=None if parallel else "post_attention_layernorm",
        q_norm="self_attn.q_layernorm.norms.{}",
        k_norm="self_attn.k_layernorm.norms.{}",
    )
    return decoder(
        config, reads=("partial_rotary_factor",), eps="layer_norm_eps", layer_norm=True, norm_bias=True,
        parallel=parallel, names=names, qkv_bias=config.flag("use_qkv_bias", False),
        qk_norm="heads" if config.flag("qk_layernorm", False) else None,
    )  # fmt: skip
