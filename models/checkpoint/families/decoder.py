"""What the families share: reading a decoder's sizes, and the kinds of its layers.

A family is a function from `Config` to `ModelSpec`. It refuses every setting that the decoder does not implement,
naming the key and the value; absent keys get the defaults of transformers' configuration classes.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..config import MAX_LAYERS, Config
from ..rope import read_rope, read_rotary_dim
from ..spec import Activation, LayerSpec, ModelSpec

# Settings of some families that change the arithmetic. A family names those that it reads; the others are refused.
FOREIGN = (
    "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling", "embedding_multiplier",
    "residual_multiplier", "attention_multiplier", "clip_qkv", "attention_chunk_size", "no_rope_layers",
    "num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank", "alibi", "partial_rotary_factor",
)  # fmt: skip
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def decoder(
    config: Config,
    *,
    reads: tuple[str, ...] = (),
    activation: str = "hidden_act",
    eps: str = "rms_norm_eps",
    **differences: Any,  # Any: values of ModelSpec's fields
) -> ModelSpec:
    """The decoder of a config.json whose layers are all of full attention. `differences` are fields that the family
    has read; `reads` are keys of FOREIGN that it takes care of; `activation` and `eps` are the names of two keys."""
    family = config.text("model_type", "llama")
    config.must_be("is_encoder_decoder", False, remedy="only decoder models are supported")
    for key in FOREIGN:
        if key not in reads:
            one = (1, 1.0) if key == "partial_rotary_factor" else ()
            config.must_be(key, *one, remedy=f"{family} models with this key are not supported")
    for key in ("attention_bias", "mlp_bias"):
        if key not in reads:
            config.must_be(key, False, remedy=f"{family} models have no such bias")
    config.must_be("use_bidirectional_attention", False, remedy="only causal attention is supported")
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    groups = config.size("num_key_value_heads", heads)
    if heads % groups:
        raise config.invalid("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    if not config.has("head_dim") and hidden % heads:
        raise config.invalid("head_dim", f"needed: hidden_size = {hidden} is no multiple of {heads} heads")
    head_dim = config.size("head_dim", hidden // heads)
    if head_dim % 2:
        raise config.unsupported("head_dim", f"the head size, {head_dim}, must be even for the rotary embedding")
    rope, max_position = read_rope(config, config.size("max_position_embeddings"))
    spec = ModelSpec(
        family=family,
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        layers=(LayerSpec(rope=rope),) * config.size("num_hidden_layers", most=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=head_dim,
        mlp_size=config.size("intermediate_size"),
        norm_eps=config.number(eps, 1e-6),
        max_position=max_position,
        activation=_activation(config, activation),
        rotary_dim=read_rotary_dim(config, head_dim) if "partial_rotary_factor" in reads else None,
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )
    return replace(spec, **differences)


def _activation(config: Config, key: str) -> Activation:
    name = config.text(key, "silu")
    if name not in ACTIVATIONS:
        raise config.unsupported(key, f"expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sliding_layers(config: Config, spec: ModelSpec, default: Callable[[int], bool]) -> list[bool]:
    """Which layers have a sliding window: as `layer_types` says, or by `default(index)`."""
    kinds = config.texts("layer_types")
    if kinds is None:
        return [default(index) for index in range(spec.num_layers)]
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise config.unsupported("layer_types", f"{min(unknown)} is not supported")
    if len(kinds) != spec.num_layers:
        raise config.invalid("layer_types", f"expected {spec.num_layers} times full_attention or sliding_attention")
    return [kind == "sliding_attention" for kind in kinds]


def with_windows(spec: ModelSpec, window: int | None, sliding: list[bool]) -> ModelSpec:
    """The spec with this window in the layers that slide."""
    layers = zip(spec.layers, sliding, strict=True)
    return replace(spec, layers=tuple(replace(layer, window=window if one else None) for layer, one in layers))


def refuse_window(config: Config) -> None:
    """For families whose attention is always full."""
    family = config.text("model_type", "llama")
    config.must_be("sliding_window", remedy=f"{family} models with a sliding window are not supported")
    if set(config.texts("layer_types") or ()) - {"full_attention"}:
        raise config.unsupported("layer_types", "only full_attention is supported")
