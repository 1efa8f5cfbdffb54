"""Random small checkpoints of every family and variant, written by transformers, for the parity tests.

A variant names the settings that matter; sizes, weights and prompts are drawn from the run's seed. The weights are
large enough that attention is far from uniform: a wrong angle or mask moves the logits by far more than the tolerance.
torch and transformers are imported only where a case is made.
"""

import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Options = dict[str, Any]  # keyword arguments of transformers' configuration classes

REPLAY_SEED: int | None = None  # put the printed seed here to repeat a run
TOLERANCE = 1e-4
ORIGINAL_LENGTH = 48  # of the scaled rotary embeddings; the prompts are longer
PROMPTS = (150, 3, 64, 101)  # tokens: more than two KV blocks, fewer than one, one exactly; beyond windows and original
NEW_TOKENS = 64

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
    "qwen3-yarn": ("Qwen3", 3, 3, {"head_dim": 24, "rope_parameters": MSCALE}, "float32"),
    "qwen3-wide-heads": (
        "Qwen3", 6, 2, {"head_dim": 32, "tie_word_embeddings": True, "attention_bias": True}, "bfloat16",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ParityCase:
    """A checkpoint folder and what transformers answers on it."""

    variant: str
    seed: int
    folder: Path
    prompts: list[list[int]]
    continuations: list[list[int]]  # NEW_TOKENS greedy tokens of each prompt
    logits: list[FloatArray]  # [prompt + continuation, vocab] of each: row i predicts token i + 1


def make_case(variant: str, seed: int, folder: Path) -> ParityCase:
    import torch

    torch.set_num_threads(1)  # the matrices are tiny: waiting for a second thread costs more than it brings
    draw = random.Random(f"{variant} {seed}")
    torch.manual_seed(draw.getrandbits(32))
    model = make_model(variant, draw)
    dtype, *sharded = VARIANTS[variant][4].split()
    stored = copy.deepcopy(model).to(getattr(torch, dtype))  # a copy: this also rounds the rotary buffers
    stored.save_pretrained(folder, max_shard_size="20KB" if sharded else "5GB")
    model.load_state_dict(stored.state_dict())
    vocab = model.config.vocab_size
    prompts: list[list[int]] = []
    continuations: list[list[int]] = []
    logits: list[FloatArray] = []
    for length in PROMPTS:
        while True:
            prompt = [draw.randrange(vocab) for _ in range(length)]
            new, rows = greedy(model, prompt)
            # Logits that are each within the tolerance cannot change places over a gap of more than twice of it. Nearer
            # ties (one prompt in a few hundred) say nothing about correctness: another prompt is drawn.
            largest = np.sort(rows[length - 1 : -1], axis=-1)
            if (largest[:, -1] - largest[:, -2]).min() > 2 * TOLERANCE:
                break
        prompts.append(prompt)
        continuations.append(new)
        logits.append(rows)
    return ParityCase(variant, seed, folder, prompts, continuations, logits)


def make_model(variant: str, draw: random.Random) -> Any:  # Any: a transformers model, untyped
    """The variant with sizes and weights drawn; norms and biases are random too."""
    import torch
    import transformers

    family, heads, kv_heads, options, _ = VARIANTS[variant]
    if family in ("Llama", "Mistral"):
        options = {"head_dim": None, **options}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=draw.randint(60, 300),
        hidden_size=heads * draw.choice([8, 10, 16]),
        intermediate_size=draw.randint(30, 130),
        num_hidden_layers=draw.choice([2, 3]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        **options,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("o_proj.bias"):
                parameter.zero_()  # the one bias that is refused unless it is zero
            elif "embed" in name or "lm_head" in name:
                parameter.normal_(0.0, 0.1)  # keeps the logits near 1, where float32 errors are well below 1e-4
            elif "q_proj" in name or "k_proj" in name:
                parameter.normal_(0.0, 0.13)  # sharper attention would amplify rounding errors tenfold
            else:
                parameter.normal_(0.0, 0.2)
    return model


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], FloatArray]:
    """The greedy continuation with transformers' own cache, and the logits of the whole sequence in one pass."""
    import torch

    with torch.no_grad():
        whole = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        logits: FloatArray = model(whole).logits[0].numpy()
    return [int(token) for token in whole[0, len(prompt) :]], logits
