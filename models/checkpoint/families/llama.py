"""Llama and what is a Llama but for a detail: Granite, SmolLM3, Arcee, Nemotron."""

from typing import Any

from msgspec.structs import replace

from ..config import Config
from ..spec import ModelSpec
from .decoder import decoder, refuse_window, sliding_layers, with_windows

BIASES = ("attention_bias", "mlp_bias")
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")


def llama(config: Config) -> ModelSpec:
    """Llama 1 to 3.2, Falcon 3 and all models saved as such. `attention_bias` means a bias on q, k, v and o."""
    config.must_be("pretraining_tp", 1, remedy="tensor-parallel slicing of the matrices is not supported")
    return _with_biases(config)


def granite(config: Config) -> ModelSpec:
    """Granite 3: four multipliers.

    That of the residual stream, m, needs no arithmetic of its own: the stream divided by m is a stream whose blocks are
    added as they are. Its norms are the same with eps / m**2, and the embeddings are divided once.
    """
    embedding, residual, scores, logits = (config.number(key, 1.0) for key in MULTIPLIERS)
    spec = _with_biases(config, reads=MULTIPLIERS)
    return replace(
        spec,
        norm_eps=spec.norm_eps / residual**2,
        embedding_factor=embedding / residual,
        query_scale=scores,
        logit_factor=1 / logits,
    )


def smollm3(config: Config) -> ModelSpec:
    """SmolLM3: every fourth layer has no rotation; with `use_sliding_window`, these have the window."""
    config = config.with_defaults(num_key_value_heads=4, rope_theta=2e6, tie_word_embeddings=True)
    window = config.optional_size("sliding_window") if config.flag("use_sliding_window", False) else None
    spec = _with_biases(config, reads=("no_rope_layers",), windows=True)
    turned = config.wholes("no_rope_layers")
    if turned is None:
        interval = config.size("no_rope_layer_interval", 4)
        turned = [int((index + 1) % interval != 0) for index in range(spec.num_layers)]
    if len(turned) < spec.num_layers or set(turned) - {0, 1}:
        raise config.invalid("no_rope_layers", f"expected {spec.num_layers} times 0 or 1")
    layers = (layer if turns else replace(layer, rope=None) for layer, turns in zip(spec.layers, turned, strict=False))
    sliding = sliding_layers(config, spec, lambda index: window is not None and not turned[index])
    return with_windows(replace(spec, layers=tuple(layers)), window, sliding)


def arcee(config: Config) -> ModelSpec:
    """AFM: no gate, squared ReLU."""
    config = config.with_defaults(hidden_act="relu2", rms_norm_eps=1e-5)
    return _with_biases(config, gated=False)


def nemotron(config: Config) -> ModelSpec:
    """Nemotron 3 and 4: LayerNorm with gains stored less 1, half of each head rotated, no gate, squared ReLU."""
    config = config.with_defaults(hidden_act="relu2", norm_eps=1e-5, partial_rotary_factor=0.5)
    return _with_biases(
        config, reads=("partial_rotary_factor",), eps="norm_eps", gated=False, layer_norm=True, norm_bias=True,
        norm_offset=1.0,
    )  # fmt: skip


def _with_biases(
    config: Config, *, reads: tuple[str, ...] = (), windows: bool = False, **differences: Any
) -> ModelSpec:  # Any: values of ModelSpec's fields
    """`attention_bias` is on q, k, v and o, `mlp_bias` on all of the MLP."""
    if not windows:
        refuse_window(config)
    bias = config.flag("attention_bias", False)
    return decoder(
        config, reads=(*BIASES, *reads), qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", False),
        **differences,
    )  # fmt: skip
