"""The description of a decoder: `ModelSpec`, and one small function per family that reads it from config.json.

A family function refuses every setting that the decoder does not implement, naming the key and the value. Absent keys
get the defaults of transformers' configuration classes. Knows neither weights nor devices.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from .config import Config
from .files import read_json
from .rope import RopeSpec, read_rope


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One pre-norm decoder: RMSNorm, rotary attention with grouped heads, SiLU-gated MLP."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    norm_eps: float
    rope: RopeSpec
    max_position: int  # context length, including rotary scaling
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm over head_dim of q and k, before the rotation
    tied_embeddings: bool = False
    sliding_window: int | None = None  # position p sees p - window < j <= p

    @property
    def parameters(self) -> int:
        """Number of weights; a tied embedding counts once."""
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * query + 2 * kv) + (query + 2 * kv) * self.qkv_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        layer = attention + 3 * self.hidden_size * self.mlp_size + norms
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return embeddings + self.num_layers * layer + self.hidden_size


MAX_CONFIG_BYTES = 4 << 20
# Settings of other families that would change the arithmetic if they were honoured.
FOREIGN = (
    "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling", "embedding_multiplier",
    "residual_multiplier", "attention_multiplier", "clip_qkv", "attention_chunk_size", "no_rope_layers",
    "num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank", "alibi",
)  # fmt: skip


def _llama(config: Config) -> ModelSpec:
    """Llama 1 to 3.2 and all models saved as such. `attention_bias` means a bias on q, k and v (for o see weights)."""
    config.must_be("pretraining_tp", 1, remedy="tensor-parallel slicing of the matrices is not supported")
    _refuse_window(config)
    return _decoder(config, qkv_bias=config.flag("attention_bias", False), kv_heads=config.size("num_attention_heads"))


def _mistral(config: Config) -> ModelSpec:
    """Mistral 7B and its descendants; `sliding_window` applies to all layers, null turns it off."""
    config.must_be("attention_bias", False, remedy="Mistral has no attention bias")
    window = config.size("sliding_window") if config.has("sliding_window") else None
    if "sliding_window" not in config.values:
        window = 4096
    kinds = set(config.texts("layer_types") or ())
    if kinds and kinds != {"full_attention" if window is None else "sliding_attention"}:
        raise config.invalid("layer_types", f"contradicts sliding_window = {window}; remove one of the two")
    return _decoder(config, window=window, kv_heads=8)


def _qwen2(config: Config) -> ModelSpec:
    """Qwen2 and Qwen2.5: always a bias on q, k and v, never on o."""
    config.must_be("attention_bias", True, remedy="Qwen2 always has a bias on q, k and v")
    return _decoder(config, qkv_bias=True, window=_optional_window(config))


def _qwen3(config: Config) -> ModelSpec:
    """Qwen3 (dense): q and k are normalised per head, head_dim is free (default 128)."""
    return _decoder(
        config,
        qkv_bias=config.flag("attention_bias", False),
        qk_norm=True,
        window=_optional_window(config),
        head_dim=128,
    )


FAMILIES: dict[str, tuple[str, Callable[[Config], ModelSpec]]] = {
    "LlamaForCausalLM": ("llama", _llama),
    "MistralForCausalLM": ("mistral", _mistral),
    "Qwen2ForCausalLM": ("qwen2", _qwen2),
    "Qwen3ForCausalLM": ("qwen3", _qwen3),
}


def load_spec(path: Path) -> ModelSpec:
    """Read `config.json` of a checkpoint folder."""
    return spec_from_config(read_json(path, "config.json", MAX_CONFIG_BYTES))


def spec_from_config(values: Mapping[str, object]) -> ModelSpec:
    config = Config(values)
    supported = ", ".join(FAMILIES)
    config.must_be("auto_map", {}, remedy="this model needs code from its folder, which Triolet never runs")
    config.must_be(
        "quantization_config",
        remedy="quantised checkpoints are not read; use the original and --quantize",
    )
    architectures = config.texts("architectures")
    model_type = config.text("model_type", "")
    if architectures is None:
        architectures = [name for name, (family, _) in FAMILIES.items() if family == model_type]
    if len(architectures) != 1 or architectures[0] not in FAMILIES:
        raise config.unsupported("architectures", f"expected one of {supported} (model_type is {model_type!r})")
    family, read = FAMILIES[architectures[0]]
    config.must_be("model_type", family, remedy=f"architectures = {architectures[0]} needs model_type = {family}")
    return read(config)


def _decoder(
    config: Config,
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    window: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> ModelSpec:
    """The part that all families share. `kv_heads` and `head_dim` are the family's defaults for absent keys."""
    config.must_be("hidden_act", "silu", "swish", remedy="only the SiLU-gated MLP is supported")
    config.must_be("mlp_bias", False, remedy="a bias in the MLP is not supported")
    config.must_be("is_encoder_decoder", False, remedy="only decoder models are supported")
    for key in FOREIGN:
        config.must_be(key, remedy=f"{config.text('model_type', 'this family')} models with this key are not supported")
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    groups = config.size("num_key_value_heads", kv_heads)
    if heads % groups:
        raise config.invalid("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    if not config.has("head_dim") and head_dim is None and hidden % heads:
        raise config.invalid("head_dim", f"needed: hidden_size = {hidden} is no multiple of {heads} heads")
    head_dim = config.size("head_dim", head_dim or hidden // heads)
    if head_dim % 2:
        raise config.unsupported("head_dim", f"the head size, {head_dim}, must be even for the rotary embedding")
    rope, max_position = read_rope(config, config.size("max_position_embeddings"))
    return ModelSpec(
        family=config.text("model_type", "llama"),
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        num_layers=config.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=head_dim,
        mlp_size=config.size("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        max_position=max_position,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        sliding_window=window,
    )


def _refuse_window(config: Config) -> None:
    config.must_be("sliding_window", remedy="Llama models with a sliding window are not supported")
    if set(config.texts("layer_types") or ()) - {"full_attention"}:
        raise config.unsupported("layer_types", "only full_attention is supported")


def _optional_window(config: Config) -> int | None:
    """Qwen's window: on for all layers or for none; a mix is refused."""
    layers = config.size("num_hidden_layers")
    window = config.size("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    if "sliding_window" in config.values and not config.has("sliding_window"):
        window = None
    kinds = config.texts("layer_types")
    if kinds is None:
        if window is None:
            return None
        full = 28 if not config.has("max_window_layers") else config.values["max_window_layers"]
        if full == 0 and full is not False:
            return window
        if config.size("max_window_layers", 28) >= layers:
            return None
        raise config.unsupported("max_window_layers", "a mixture of sliding and full attention layers is not supported")
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise config.invalid("layer_types", f"expected {layers} times full_attention or sliding_attention")
    if len(set(kinds)) > 1:
        raise config.unsupported("layer_types", "a mixture of sliding and full attention layers is not supported")
    if kinds[0] == "full_attention":
        return None
    if window is None:
        raise config.invalid("layer_types", "sliding_attention needs use_sliding_window = true and a sliding_window")
    return window
