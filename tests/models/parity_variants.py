"""Every family and variant that the parity tests run: the settings that matter. Sizes are drawn."""

import json
import random
from typing import Any

from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.spec import ModelSpec

Options = dict[str, Any]  # keyword arguments of transformers' configuration classes
ORIGINAL_LENGTH = 48  # of the scaled rotary embeddings; the prompts are longer

LLAMA3: Options = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_LENGTH,
}
YARN: Options = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_LENGTH,
    "beta_fast": 8.0,
}
LINEAR: Options = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0}
QWEN_WINDOW: Options = {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 0}
MSCALE: Options = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.3, "truncate": False}

# A limit that gates reach.
GPT_OSS: Options = {"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 41, "swiglu_limit": 1.2}
EXPERTS: Options = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 30}
MIXTURES: dict[str, tuple[str, int, int, Options, str]] = {
    "mixtral": ("Mixtral", 4, 2, {"num_local_experts": 5, "num_experts_per_tok": 2}, "float32"),
    "mixtral-window": (
        "Mixtral", 4, 2, {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 37}, "bfloat16 sharded",
    ),
    "qwen2-moe": (
        "Qwen2Moe", 4, 4, {**EXPERTS, "shared_expert_intermediate_size": 70, "mlp_only_layers": [0]}, "float32",
    ),
    "qwen3-moe": (
        "Qwen3Moe", 4, 2, {**EXPERTS, "head_dim": 20, "norm_topk_prob": True, "decoder_sparse_step": 2}, "float32",
    ),
    "qwen3-moe-fused": ("Qwen3Moe", 4, 2, {**EXPERTS, "head_dim": 16}, "float16 fused sharded"),
    "mixtral-fused": ("Mixtral", 4, 4, {"num_local_experts": 4, "num_experts_per_tok": 2}, "bfloat16 fused"),
    "olmoe": ("Olmoe", 6, 2, {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}, "float32"),
    "olmoe-bias": ("Olmoe", 4, 4, {"num_experts": 5, "num_experts_per_tok": 2, "attention_bias": True}, "bfloat16"),
    "gpt-oss": ("GptOss", 6, 2, {**GPT_OSS, "head_dim": 20}, "float32"),
    "gpt-oss-mxfp4": (
        "GptOss", 4, 4,
        {**GPT_OSS, "hidden_size": 64, "intermediate_size": 96, "layer_types": ["full_attention"] * 3,
         "rope_parameters": {**YARN, "truncate": False}},
        "bfloat16 mxfp4",
    ),
}  # fmt: skip
LATENT: Options = {"kv_lora_rank": 26, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20}
DEEPSEEK: Options = {
    **LATENT, "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 30, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip
GROUPS: Options = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.8}
LATENTS: dict[str, tuple[str, int, int, Options, str]] = {
    "deepseek-v2-lite": (
        "DeepseekV2", 4, 4,
        {**DEEPSEEK, "q_lora_rank": None, "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
        "float32",
    ),
    "deepseek-v2-groups": (
        "DeepseekV2", 6, 6, {**DEEPSEEK, **GROUPS, "q_lora_rank": 22, "topk_method": "group_limited_greedy"},
        "bfloat16 sharded",
    ),
    "deepseek-v3": (
        "DeepseekV3", 4, 4, {**DEEPSEEK, **GROUPS, "q_lora_rank": 20, "rope_parameters": {**YARN, "mscale": 1.0,
        "mscale_all_dim": 1.0}}, "float32",
    ),
    "deepseek-v3-halves": (
        "DeepseekV3", 8, 8, {**DEEPSEEK, "n_group": 1, "topk_group": 1, "q_lora_rank": None, "rope_interleave": False,
        "norm_topk_prob": False, "n_shared_experts": 1, "first_k_dense_replace": 0}, "float32",
    ),
}  # fmt: skip
PLAIN: Options = {"rope_type": "default", "rope_theta": 10_000.0}
HALF: Options = {**PLAIN, "partial_rotary_factor": 0.5}
PHI: Options = {"sliding_window": 120, "original_max_position_embeddings": 40}
LONG: Options = {  # six pairs of dimensions: heads of 16, three quarters rotated
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
}
GROWTH: Options = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}

# name: (family, attention heads, kv heads, settings, how the weights are stored)
VARIANTS: dict[str, tuple[str, int, int, Options, str]] = {
    "llama-mha": ("Llama", 4, 4, {}, "float32"),
    "llama-mqa-tied-linear": ("Llama", 4, 1, {"tie_word_embeddings": True, "rope_parameters": LINEAR}, "bfloat16"),
    "llama-gqa-llama3-bias": (
        "Llama", 6, 2, {"rope_parameters": LLAMA3, "attention_bias": True, "head_dim": 20}, "float32 sharded",
    ),
    "mistral-window": ("Mistral", 4, 2, {"sliding_window": 37}, "float16"),
    "mistral-full": ("Mistral", 4, 2, {"sliding_window": None, "tie_word_embeddings": True}, "bfloat16 sharded"),
    "qwen2-tied": ("Qwen2", 4, 2, {"tie_word_embeddings": True}, "float32"),
    "qwen2-window-yarn": ("Qwen2", 4, 1, {**QWEN_WINDOW, "rope_parameters": YARN}, "float32"),
    "qwen3-windows": ("Qwen3", 4, 2, {**QWEN_WINDOW, "max_window_layers": 1, "head_dim": 16}, "float32"),
    "qwen3-yarn": ("Qwen3", 3, 3, {"head_dim": 24, "rope_parameters": MSCALE}, "float32"),
    "qwen3-wide-heads": (
        "Qwen3", 6, 2, {"head_dim": 32, "tie_word_embeddings": True, "attention_bias": True}, "bfloat16",
    ),
    **MIXTURES,
    **LATENTS,
    "gemma-mqa": ("Gemma", 4, 1, {"head_dim": 16}, "float32"),
    "gemma2-bias": (
        "Gemma2", 4, 2,
        {"head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 37, "attention_bias": True,
         "attn_logit_softcapping": 1.5, "final_logit_softcapping": 6.0},
        "bfloat16",
    ),
    "gemma3-ropes": (
        "Gemma3Text", 4, 1,
        {"head_dim": 16, "sliding_window": 29, "layer_types": ["sliding_attention", "full_attention"] * 2,
         "query_pre_attn_scalar": 24, "rope_parameters": {"full_attention": {**LINEAR, "rope_theta": 1e5},
         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        "float32",
    ),
    "phi3-long": ("Phi3", 4, 2, {**PHI, "rope_parameters": LONG}, "float32"),
    "phi3-short": (
        "Phi3", 4, 2, {**PHI, "original_max_position_embeddings": 256, "rope_parameters": LONG}, "float32",
    ),
    "olmo2-gqa": ("Olmo2", 6, 2, {"attention_bias": True}, "float32"),
    "olmo3-windows": (
        "Olmo3", 4, 4,
        {"sliding_window": 45, "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": None},
        "bfloat16",
    ),
    "granite-biases": (
        "Granite", 4, 2,
        {"embedding_multiplier": 7.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 3.0,
         "attention_bias": True, "mlp_bias": True},
        "float32",
    ),
    "smollm3-no-rotation": ("SmolLM3", 4, 2, {"no_rope_layer_interval": 2}, "float32"),
    "stablelm-head-norms": (
        "StableLm", 4, 2,
        {"use_qkv_bias": True, "qk_layernorm": True, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
        "float32",
    ),
    "stablelm-parallel": (
        "StableLm", 4, 4,
        {"use_parallel_residual": True, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.25}},
        "float16",
    ),
    "cohere-head-norms": ("Cohere", 4, 2, {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.3}, "float32"),
    "cohere2-windows": (
        "Cohere2", 4, 2,
        {"sliding_window": 33, "logit_scale": 1.7, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "bfloat16",
    ),
    "glm-partial": ("Glm", 4, 2, {"head_dim": 16, "rope_parameters": HALF}, "float32"),
    "glm4-norms-behind": ("Glm4", 4, 2, {"head_dim": 24, "rope_parameters": HALF}, "bfloat16"),
    "ministral-windows": (
        "Ministral", 4, 2,
        {"head_dim": 12, "sliding_window": 41, "layer_types": ["sliding_attention", "full_attention"] * 2}, "float32",
    ),
    "ministral3-growth": ("Ministral3", 4, 2, {"head_dim": 16, "rope_parameters": GROWTH}, "float32"),
    "arcee-biases": ("Arcee", 4, 2, {"mlp_bias": True}, "float32"),
    "nemotron": ("Nemotron", 4, 2, {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, "float32"),
    "llama-gelu-biases": ("Llama", 4, 2, {"mlp_bias": True, "attention_bias": True, "hidden_act": "gelu"}, "float32"),
    "llama-relu": ("Llama", 4, 4, {"hidden_act": "relu"}, "float32"),
}  # fmt: skip

ALL_PROMPTS = (*tuple(VARIANTS)[:10], *MIXTURES, *LATENTS)


def architecture_of(variant: str) -> str:
    return VARIANTS[variant][0].removesuffix("Text") + "ForCausalLM"


def spec_of(variant: str, draw: random.Random) -> ModelSpec:
    """The variant's structure, with sizes drawn."""
    config = json.loads(make_config(variant, draw).to_json_string())
    return spec_from_config({**config, "architectures": [architecture_of(variant)]})


def make_config(variant: str, draw: random.Random) -> Any:  # Any: a transformers configuration, untyped
    """The variant with sizes drawn."""
    import transformers

    family, heads, kv_heads, given, _ = VARIANTS[variant]
    options: Options = dict(given)
    if family in ("Llama", "Mistral"):
        options.setdefault("head_dim", None)
    layers = draw.choice([2, 3])
    if "layer_types" in options:
        options["layer_types"] = options["layer_types"][:layers]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=draw.randint(60, 300),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        **{
            "hidden_size": heads * (16 if family in ("Phi3", "StableLm") else draw.choice([8, 12, 16])),
            "intermediate_size": draw.randint(30, 130),
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "rms_norm_eps": 1e-5, **options,
        },
    )  # fmt: skip
    config._experts_implementation = "eager"  # the grouped product wants sizes in multiples of 4
    config.eos_token_id = None  # also of families that make a list of None
    return config
