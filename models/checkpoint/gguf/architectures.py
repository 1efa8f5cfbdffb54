"""The architectures of GGUF files that are read, as data: which family of Hugging Face each is, and what differs.

A row says how the metadata's keys are called in that family's config.json, which settings the format takes for granted,
how its tensors are called, and what the converter changed in them. Sources: `gguf-py/gguf/constants.py`,
`tensor_mapping.py`, the converters, and `src/models/` of https://github.com/ggml-org/llama.cpp
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from . import deepseek_names

# Keys of the metadata, after "ARCHITECTURE.", and of a config.json.
KEYS: Final = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
EXPERT_KEYS: Final = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
# These say nothing that the others do not, or nothing about the arithmetic.
IDLE_KEYS: Final = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
# Tensors outside the layers, and in layer "blk.N.", without ".weight" or ".bias".
TENSORS: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# "{}" is the number of the expert: one tensor has the matrices of all.
EXPERT_TENSORS: Final = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
NORMS_AROUND: Final = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}


class Architecture(Struct, frozen=True, kw_only=True):
    """How files of one architecture become a family of Hugging Face's."""

    name: str  # in config.json's `architectures`
    model_type: str
    keys: Mapping[str, str] = {}  # besides KEYS
    constants: Mapping[str, object] = {}  # settings of config.json that the format takes for granted
    tensors: Mapping[str, str] = {}  # besides LAYER_TENSORS
    swapped_rows: bool = False  # q and k have their rows in the order of interleaved rotary pairs
    gain_offset: bool = False  # norms' gains have the family's offset added
    window_pattern: int | None = None  # of so many layers in turn, all but the last have the sliding window
    bias_key: str = "attention_bias"  # the setting that says that q, k and v have biases
    qk_norm_key: str | None = None  # the setting that says that q and k are normalised, where that is a choice
    wide_queries: int | None = None  # the number of layers of the size whose queries are scaled by hidden / heads
    local_theta: float | None = None  # base of the rotation in layers with a window, if it is another
    rounded_ramp: bool = True  # the ends of YaRN's ramp are whole dimensions, which no key of the format says
    experts: str | None = None  # the row for files of this architecture with experts
    sigmoid: str | None = None  # the row for files whose experts are scored by sigmoid
    latent: bool = False  # attention and experts as DeepSeek has them


def architecture_of(name: str, experts: bool, sigmoid: bool) -> Architecture | None:
    """The row for a file with `general.architecture` = name, with or without experts, and how these are scored."""
    row = ARCHITECTURES.get(name)
    if row is None:
        return None
    more = (row.experts if experts else None) or (row.sigmoid if sigmoid else None)
    return row if more is None else ARCHITECTURES[more]


_GEMMA_TENSORS: Final = {**NORMS_AROUND, "ffn_norm": "pre_feedforward_layernorm"}
_WINDOW_KEY: Final = {"attention.sliding_window": "sliding_window"}
_DEEPSEEK: Final = Architecture(
    name="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    keys=deepseek_names.KEYS,
    constants={"norm_topk_prob": False, "routed_scaling_factor": 1.0},
    tensors={**EXPERT_TENSORS, **deepseek_names.TENSORS},
    latent=True,
)
ARCHITECTURES: Final[dict[str, Architecture]] = {
    # Llama, Mistral, Falcon 3 and whatever else was saved as Llama
    "llama": Architecture(name="LlamaForCausalLM", model_type="llama", swapped_rows=True, experts="llama with experts"),
    "llama with experts": Architecture(
        name="MixtralForCausalLM",
        model_type="mixtral",
        keys={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        tensors={
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
            "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
            "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        },
        swapped_rows=True,
    ),
    "qwen2": Architecture(name="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen3": Architecture(name="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen2moe": Architecture(
        name="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        keys={**EXPERT_KEYS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        constants={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
        tensors={
            **EXPERT_TENSORS,
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        },
    ),
    "qwen3moe": Architecture(
        name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        keys=EXPERT_KEYS,
        constants={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        tensors=EXPERT_TENSORS,
    ),
    "olmoe": Architecture(
        name="OlmoeForCausalLM",
        model_type="olmoe",
        keys={**EXPERT_KEYS, "attention.clamp_kqv": "clip_qkv"},
        constants={"norm_topk_prob": False},
        tensors=EXPERT_TENSORS,
    ),
    # DeepSeek-V2, V2.5 and their Lite and Coder models; V3, V3.1, R1, and those saved as such
    "deepseek2": replace(_DEEPSEEK, sigmoid="deepseek2 with sigmoid"),
    "deepseek2 with sigmoid": replace(_DEEPSEEK, name="DeepseekV3ForCausalLM", model_type="deepseek_v3"),
    "gpt-oss": Architecture(
        name="GptOssForCausalLM",
        model_type="gpt_oss",
        keys={
            **_WINDOW_KEY,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
        tensors={
            **EXPERT_TENSORS,
            "ffn_gate_inp": "mlp.router",
            "attn_sinks": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
        },
        window_pattern=2,
        rounded_ramp=False,
    ),
    "gemma2": Architecture(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        keys={
            **_WINDOW_KEY,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        constants={"hidden_activation": "gelu_pytorch_tanh"},
        tensors=_GEMMA_TENSORS,
        gain_offset=True,
        window_pattern=2,
        wide_queries=46,  # 27B
    ),
    "gemma3": Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        keys={**_WINDOW_KEY, "final_logit_softcapping": "final_logit_softcapping"},
        constants={"hidden_activation": "gelu_pytorch_tanh"},
        tensors=_GEMMA_TENSORS,
        gain_offset=True,
        window_pattern=6,
        wide_queries=62,  # 27B
        local_theta=10_000.0,
    ),
    "phi3": Architecture(
        name="Phi3ForCausalLM",
        model_type="phi3",
        keys=_WINDOW_KEY,
        tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "olmo2": Architecture(name="Olmo2ForCausalLM", model_type="olmo2", tensors=NORMS_AROUND),
    "granite": Architecture(
        name="GraniteForCausalLM",
        model_type="granite",
        keys={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        swapped_rows=True,
    ),
    "smollm3": Architecture(name="SmolLM3ForCausalLM", model_type="smollm3", swapped_rows=True),
    "command-r": Architecture(
        name="CohereForCausalLM",
        model_type="cohere",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
        qk_norm_key="use_qk_norm",
    ),
    "cohere2": Architecture(
        name="Cohere2ForCausalLM",
        model_type="cohere2",
        keys={**_WINDOW_KEY, "attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
        window_pattern=4,
    ),
    "glm4": Architecture(
        name="Glm4ForCausalLM",
        model_type="glm4",
        tensors={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
    ),
    "stablelm": Architecture(
        name="StableLmForCausalLM",
        model_type="stablelm",
        keys={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        bias_key="use_qkv_bias",
    ),
}
