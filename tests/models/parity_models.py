"""Random small checkpoints of every family and variant, written by transformers, for the parity tests.

A variant names the settings that matter; the rest (sizes, weights) is drawn from the run's seed. Weights are large
enough (std 0.2) that attention is far from uniform and a wrong angle or mask moves the logits by more than 0.01.
"""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Options = dict[str, Any]  # keyword arguments of transformers' configuration classes
ORIGINAL_LENGTH = 48  # of the scaled rotary embeddings; the test contexts are longer
CONTEXT = 200  # longer than 3 KV blocks, than every window below and than ORIGINAL_LENGTH

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
FAMILIES: dict[str, tuple[type[Any], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
# name: (family, attention heads, kv heads, settings)
VARIANTS: dict[str, tuple[str, int, int, Options]] = {
    "llama-mha": ("llama", 4, 4, {}),
    "llama-mqa-tied-linear": (
        "llama",
        4,
        1,
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
        },
    ),
    "llama-gqa-llama3-bias": ("llama", 6, 2, {"rope_parameters": LLAMA3, "attention_bias": True, "head_dim": 20}),
    "mistral-window": ("mistral", 4, 2, {"sliding_window": 37}),
    "mistral-full": ("mistral", 4, 2, {"sliding_window": None, "tie_word_embeddings": True}),
    "qwen2-tied": ("qwen2", 4, 2, {"tie_word_embeddings": True}),
    "qwen2-window-yarn": (
        "qwen2",
        4,
        1,
        {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 0, "rope_parameters": YARN},
    ),
    "qwen3-yarn": (
        "qwen3",
        3,
        3,
        {"head_dim": 24, "rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.3, "truncate": False}},
    ),
    "qwen3-wide-heads": ("qwen3", 6, 2, {"head_dim": 32, "tie_word_embeddings": True, "attention_bias": True}),
}


def make_model(variant: str, seed: int) -> PreTrainedModel:
    """The variant with sizes and weights drawn from `seed`; norms and biases are random too."""
    family, heads, kv_heads, options = VARIANTS[variant]
    draw = random.Random(f"{variant} {seed}")
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(draw.getrandbits(32))
    config = config_class(
        vocab_size=draw.randint(60, 300),
        hidden_size=heads * draw.choice([8, 10, 16]),
        intermediate_size=draw.randint(30, 130),
        num_hidden_layers=draw.choice([2, 3]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        **{"head_dim": None, **options} if family in ("llama", "mistral") else options,
    )
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("o_proj.bias"):
                parameter.zero_()  # the one bias that is refused unless it is zero
            else:
                parameter.normal_(0.0, 0.2)
    return model


def save_model(model: PreTrainedModel, folder: Path, *, sharded: bool = False, dtype: str = "float32") -> None:
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="20KB" if sharded else "5GB")
    model.float()


def transformers_logits(model: PreTrainedModel, tokens: list[int]) -> Any:  # Any: a numpy array, untyped upstream
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def transformers_greedy(model: PreTrainedModel, tokens: list[int], count: int) -> list[int]:
    """Greedy continuation with transformers' own cache; `count` tokens whatever they are."""
    with torch.no_grad():
        result = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return [int(token) for token in result[0, len(tokens) :]]
