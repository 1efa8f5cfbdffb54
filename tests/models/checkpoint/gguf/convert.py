"""What llama.cpp's converter makes of each family's config: writes converted.json, the headers without the data.

    python -m tests.models.checkpoint.gguf.convert LLAMA_CPP

LLAMA_CPP is a checkout of https://github.com/ggml-org/llama.cpp; run where torch, transformers and its requirements are
installed. Models are random and tiny, with no tokenizer. The test makes files of these headers again.
"""

import json
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

CONVERTED = Path(__file__).with_name("converted.json")
SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0 + j / 8 for j in range(8)],
    "long_factor": [1.0 + j for j in range(8)],
}  # fmt: skip
# As published: the magnitudes' weights are one number.
DEEPSEEK_YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
    "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "num_hidden_layers": 3, "rope_parameters": DEEPSEEK_YARN,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
# name: (transformers' configuration class, settings)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rms_norm_eps": 1e-5}),
    "llama, tied, llama3, biases": (
        "LlamaConfig", {"tie_word_embeddings": True, "rope_parameters": LLAMA3, "attention_bias": True},
    ),
    "llama, yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 32}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2moe": (
        "Qwen2MoeConfig",
        {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 96, "norm_topk_prob": False},
    ),
    "qwen3moe": ("Qwen3MoeConfig", {**EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 32}),
    "olmoe": ("OlmoeConfig", {**EXPERTS, "num_key_value_heads": 4}),
    "olmo2": ("Olmo2Config", {}),
    "gemma2": ("Gemma2Config", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 7},
    ),
    "phi3": ("Phi3Config", {"sliding_window": 32}),
    "phi3, long": ("Phi3Config", {"original_max_position_embeddings": 64, "rope_parameters": LONG}),
    "granite": (
        "GraniteConfig",
        {"attention_multiplier": 0.1, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5}),
    "cohere": ("CohereConfig", {"logit_scale": 0.5}),
    "cohere2": ("Cohere2Config", {"logit_scale": 0.5, "sliding_window": 16, "head_dim": 16, "num_hidden_layers": 5}),
    "glm4": ("Glm4Config", {"head_dim": 16, "attention_bias": True}),
    "stablelm": ("StableLmConfig", {"use_qkv_bias": True}),
    "deepseek2, lite": ("DeepseekV2Config", {**LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    "deepseek2, groups": (
        "DeepseekV2Config",
        {
            **LATENT, "q_lora_rank": 16, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 16.0,
        },
    ),
    "deepseek2, sigmoid": (
        "DeepseekV3Config",
        {
            **LATENT, "q_lora_rank": 16, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 4,
            "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
            "rope_parameters": {**DEEPSEEK_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
}  # fmt: skip


def convert(folder: Path, model: str) -> dict[str, Any]:
    """One model's config.json, and the metadata and tensors of its GGUF file."""
    transformers, conversion, gguf = (import_module(name) for name in ("transformers", "conversion", "gguf"))
    kind, settings = MODELS[model]
    config = getattr(transformers, kind)(**{**SIZES, **settings})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    if kind == "Cohere2Config":  # the converter wants it, though the class has no such key
        (folder / "config.json").write_text(json.dumps({**values, "rotary_pct": 1.0}))
    vocabulary = {f"t{token}": token for token in range(SIZES["vocab_size"])}  # Gemma's converter counts them
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}}))
    read = conversion.ModelBase.load_hparams(folder, False)
    converter = conversion.get_model_class(conversion.get_model_architecture(read, conversion.ModelType.TEXT))
    converter.set_vocab = no_vocabulary
    path = folder / "model.gguf"
    converter(folder, gguf.LlamaFileType.ALL_F32, path, eager=True, hparams=read).write()
    reader = gguf.GGUFReader(path)
    prefix = reader.fields["general.architecture"].contents() + "."
    factors = [tensor for tensor in reader.tensors if tensor.name.startswith("rope_")]
    return {
        "config": {key: value for key, value in values.items() if key != "transformers_version"},
        "metadata": {
            key: [field.types[0].name if len(field.types) == 1 else field.types[-1].name, field.contents()]
            for key, field in reader.fields.items()
            if key.startswith(prefix) or key == "general.architecture"
        },
        "tensors": once_for_all({tensor.name: tensor.shape[::-1].tolist() for tensor in reader.tensors}),
        "factors": {tensor.name: [float(value) for value in tensor.data] for tensor in factors},
    }


def once_for_all(tensors: dict[str, list[int]]) -> dict[str, list[int]]:
    """With "*" for the layer's number where all layers have the tensor."""
    names = {name: re.sub(r"blk\.\d+", "blk.*", name) for name in tensors}
    most = max(list(names.values()).count(name) for name in names.values())
    common = {name for name in names.values() if list(names.values()).count(name) == most}
    return {names[name] if names[name] in common else name: shape for name, shape in tensors.items()}


def no_vocabulary(_converter: object) -> None:
    """In the place of the converter's own method."""


def main(llama_cpp: str) -> None:
    sys.path[:0] = [str(Path(llama_cpp) / "gguf-py"), llama_cpp]
    lines: list[str] = []
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(f"{json.dumps(model)}: {json.dumps(convert(Path(folder), model), separators=(',', ':'))}")
    CONVERTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
