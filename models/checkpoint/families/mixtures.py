"""Mixtures of experts: Mixtral, Qwen2- and Qwen3-MoE, OLMoE, gpt-oss."""

from collections.abc import Collection

from msgspec.structs import replace

from ....kernels.experts.routing import Routing
from ...errors import CheckpointError
from ..config import Config
from ..experts import MAX_EXPERTS, MIXTRAL_NAMES, ExpertNames, ExpertSpec
from ..spec import ModelSpec
from .decoder import decoder, refuse_window, sliding_layers, with_windows

EXPERT_KEYS = ("num_experts", "num_local_experts")
GPT_OSS_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def mixtral(config: Config) -> ModelSpec:
    """Mixtral 8x7B and 8x22B: all layers have experts; their weights add up to 1."""
    config = config.with_defaults(num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6)
    spec, window = decoder(config, reads=EXPERT_KEYS), config.optional_size("sliding_window")
    spec = with_windows(spec, window, [True] * spec.num_layers)
    experts = ExpertSpec(
        count=config.size("num_local_experts", 8),
        width=config.size("intermediate_size"),
        routing=Routing(chosen=config.size("num_experts_per_tok", 2), normalised=True),
        names=MIXTRAL_NAMES,
    )
    return with_experts(config, spec, experts, range(spec.num_layers))


def qwen2_moe(config: Config) -> ModelSpec:
    """Qwen1.5- and Qwen2-MoE: beside the chosen experts a shared one, whose weight is a sigmoid."""
    config = config.with_defaults(num_key_value_heads=16)
    config.must_be("attention_bias", True, remedy="its bias is on q, k and v, as qkv_bias says")
    reads = (*EXPERT_KEYS, "attention_bias")
    spec = _alternating(config, decoder(config, qkv_bias=config.flag("qkv_bias", True), reads=reads))
    experts = ExpertSpec(
        count=config.size("num_experts", 60),
        width=config.size("moe_intermediate_size", 1408),
        routing=_routing(config, 4),
        shared_width=config.size("shared_expert_intermediate_size", 5632),
        shared_gated=True,
    )
    return with_experts(config, spec, experts, _sparse_layers(config, spec.num_layers))


def qwen3_moe(config: Config) -> ModelSpec:
    """Qwen3-MoE: attention as in Qwen3."""
    config = config.with_defaults(num_key_value_heads=4)
    window = config.size("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    bias = config.flag("attention_bias", False)
    reads = (*EXPERT_KEYS, "attention_bias")
    spec = decoder(config, qkv_bias=bias, out_bias=bias, qk_norm="head", reads=reads)
    spec = with_windows(spec, window, [True] * spec.num_layers)
    experts = ExpertSpec(
        count=config.size("num_experts", config.size("num_local_experts", 128)),
        width=config.size("moe_intermediate_size", 768),
        routing=_routing(config, 8),
    )
    return with_experts(config, spec, experts, _sparse_layers(config, spec.num_layers))


def olmoe(config: Config) -> ModelSpec:
    """OLMoE: q and k are normalised over all heads; every layer has experts."""
    refuse_window(config)
    config = config.with_defaults(rms_norm_eps=1e-5)
    bias = config.flag("attention_bias", False)
    spec = decoder(config, qkv_bias=bias, out_bias=bias, qk_norm="row", reads=(*EXPERT_KEYS, "attention_bias"))
    experts = ExpertSpec(
        count=config.size("num_experts", 64), width=config.size("intermediate_size", 2048), routing=_routing(config, 8)
    )
    return with_experts(config, spec, experts, range(spec.num_layers))


def gpt_oss(config: Config) -> ModelSpec:
    """gpt-oss: sinks in attention, a window in every other layer, biases everywhere, a clamped SwiGLU in experts."""
    rope = {} if config.has("rope_scaling") or config.has("rope_parameters") else {"rope_parameters": GPT_OSS_ROPE}
    config = config.with_defaults(
        num_key_value_heads=8, head_dim=64, rms_norm_eps=1e-5, sliding_window=128, rope_theta=1.5e5, **rope
    )
    bias, window = config.flag("attention_bias", True), config.optional_size("sliding_window")
    spec = decoder(config, qkv_bias=bias, out_bias=bias, sinks=True, reads=(*EXPERT_KEYS, "attention_bias"))
    sliding = sliding_layers(config, spec, lambda index: index % 2 == 0)
    experts = ExpertSpec(
        count=config.size("num_local_experts", 128),
        width=config.size("intermediate_size"),
        routing=Routing(chosen=config.size("num_experts_per_tok", 4), scores="softmax of chosen"),
        biased=True,
        gate_limit=config.number("swiglu_limit", 7.0),
        gate_slope=config.number("swiglu_alpha", 1.702),
        up_offset=1.0,
        names=ExpertNames(router="mlp.router", in_turn=True),
    )
    return with_experts(config, with_windows(spec, window, sliding), experts, range(spec.num_layers))


def with_experts(config: Config, spec: ModelSpec, experts: ExpertSpec, sparse: Collection[int]) -> ModelSpec:
    """The spec with experts in these layers. Without dense layers nothing is as wide as the config's MLP."""
    assert spec.names.after_mlp is None, "experts add to the residual stream themselves"
    assert not spec.parallel, "likewise"
    routing, dense = experts.routing, len(sparse) < spec.num_layers
    if routing.chosen > experts.count:
        raise config.invalid("num_experts_per_tok", f"there are {experts.count} experts: it can be no more")
    if (count := experts.count * max(1, len(sparse))) > MAX_EXPERTS:
        raise CheckpointError("experts", count, f"in all layers; at most {MAX_EXPERTS} are read")
    if spec.activation != "silu":
        raise config.unsupported("hidden_act", "only silu is supported in experts")
    layers = tuple(replace(layer, experts=index in sparse) for index, layer in enumerate(spec.layers))
    return replace(spec, layers=layers, experts=experts, mlp_size=spec.mlp_size if dense else 0)


def _routing(config: Config, chosen: int) -> Routing:
    return Routing(chosen=config.size("num_experts_per_tok", chosen), normalised=config.flag("norm_topk_prob", False))


def _sparse_layers(config: Config, count: int) -> list[int]:
    """Every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
    step, dense = config.size("decoder_sparse_step", 1), config.wholes("mlp_only_layers") or ()
    return [index for index in range(count) if (index + 1) % step == 0 and index not in dense]


def _alternating(config: Config, spec: ModelSpec) -> ModelSpec:
    """With `use_sliding_window` every other layer has the window, up to `max_window_layers`."""
    window = config.size("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    last = config.whole("max_window_layers", 28)
    sliding = sliding_layers(config, spec, lambda index: window is not None and index % 2 == 0 and index < last)
    if any(sliding) and window is None:
        raise config.invalid("layer_types", "sliding_attention needs use_sliding_window = true and a sliding_window")
    return with_windows(spec, window, sliding)
