"""DeepSeek-V2 and -V3: latent attention, and mixtures of experts of which every token takes some without choosing."""

from msgspec.structs import replace

from ....kernels.experts.routing import Routing
from ..config import MAX_LAYERS, Config
from ..experts import ExpertNames, ExpertSpec
from ..latent import LatentSpec
from ..rope import score_magnitude
from ..spec import ModelSpec
from .decoder import decoder, refuse_window
from .mixtures import EXPERT_KEYS, with_experts

NAMES = ExpertNames(shared="mlp.shared_experts.")


def deepseek_v2(config: Config) -> ModelSpec:
    """DeepSeek-V2, V2.5 and Coder-V2, and their Lite models, whose queries have no latent vector."""
    config = config.with_defaults(
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1407,
    )  # fmt: skip
    config.must_be("scoring_func", "softmax", remedy="experts of DeepSeek-V2 are scored by softmax")
    config.must_be("norm_topk_prob", False, remedy="the weights of DeepSeek-V2's experts are not divided by their sum")
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.unsupported("topk_method", "expected greedy or group_limited_greedy")
    scale, chosen = config.number("routed_scaling_factor", 1.0), config.size("num_experts_per_tok")
    routing = Routing(chosen=chosen, scale=scale)
    if method == "group_limited_greedy":
        groups, chosen_groups = config.size("n_group"), config.size("topk_group")
        routing = replace(routing, groups=groups, chosen_groups=chosen_groups)
    return _deepseek(config, _attention(config, interleaved=True), routing, corrected=False)


def deepseek_v3(config: Config) -> ModelSpec:
    """DeepSeek-V3, V3.1 and R1: experts by the sigmoid of their logits, chosen after a stored correction.

    The layers behind the last, which only predict further tokens, stay in the file.
    """
    config = config.with_defaults(
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=256, n_shared_experts=1, moe_intermediate_size=2048, first_k_dense_replace=3,
        n_group=8, topk_group=4,
    )  # fmt: skip
    config.must_be("scoring_func", "sigmoid", remedy="experts of DeepSeek-V3 are scored by sigmoid")
    config.must_be("topk_method", "noaux_tc", remedy="expected noaux_tc")
    routing = Routing(
        chosen=config.size("num_experts_per_tok", 8),
        scores="sigmoid",
        normalised=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 2.5),
        groups=config.size("n_group"),
        chosen_groups=config.size("topk_group"),
        group_best=2,
    )
    spec = _attention(config, interleaved=config.flag("rope_interleave", True))
    unused = config.whole("num_nextn_predict_layers", config.whole("num_mtp_layers", 1), most=MAX_LAYERS)
    spec = replace(spec, unused_layers=unused)
    return _deepseek(config, spec, routing, corrected=True)


def _attention(config: Config, *, interleaved: bool) -> ModelSpec:
    """The decoder without experts. What it compares and caches of a token is the latent vector and the rotated key."""
    refuse_window(config)
    latent = LatentSpec(
        kv_rank=config.size("kv_lora_rank"),
        query_rank=config.optional_size("q_lora_rank"),
        plain_dim=config.size("qk_nope_head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )
    heads = config.size("num_attention_heads")
    config.must_be("num_key_value_heads", heads, remedy="latent attention has as many keys and values as queries")
    for key in ("kv_lora_rank", "qk_rope_head_dim"):
        if config.size(key) % 2:
            raise config.unsupported(key, "an even number is needed")
    cached = Config({**config.values, "head_dim": latent.row_dim, "num_key_value_heads": 1}, config.prefix)
    spec = decoder(
        cached, reads=(*EXPERT_KEYS, "n_routed_experts", "kv_lora_rank"), latent=latent,
        interleaved_rotary=interleaved, query_scale=latent.query_dim**-0.5 * score_magnitude(config) ** 2,
    )  # fmt: skip
    rope = spec.layers[0].rope
    if rope is not None and rope.query_growth:
        raise config.unsupported("rope_scaling", f"llama_4_scaling_beta is not a setting of {spec.family}")
    return spec


def _deepseek(config: Config, spec: ModelSpec, routing: Routing, *, corrected: bool) -> ModelSpec:
    """The decoder with experts in all layers but the first."""
    config.must_be("moe_layer_freq", 1, remedy="every layer after the dense ones has experts")
    count, width = config.size("n_routed_experts"), config.size("moe_intermediate_size")
    if count % routing.groups or count // routing.groups < routing.group_best:
        raise config.invalid("n_group", f"must divide n_routed_experts = {count} into groups of {routing.group_best}")
    if not routing.chosen <= routing.chosen_groups * (count // routing.groups) <= count:
        raise config.invalid("topk_group", f"from {routing.groups} groups {routing.chosen} experts are to be chosen")
    experts = ExpertSpec(
        count=count,
        width=width,
        routing=routing,
        corrected=corrected,
        shared_width=width * config.whole("n_shared_experts"),
        names=NAMES,
    )
    return with_experts(config, spec, experts, range(config.whole("first_k_dense_replace", 0), spec.num_layers))
