"""Random small checkpoints of every family and variant, written by transformers, for the parity tests.

Sizes, weights and prompts are drawn from the run's seed. The weights are large enough that attention is far from
uniform: a wrong angle or mask moves the logits by far more than the tolerance. torch and transformers are imported only
where a case is made.
"""

import copy
import json
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from .parity_variants import VARIANTS, architecture_of, make_config

FloatArray = npt.NDArray[np.float32]

REPLAY_SEED: int | None = None  # put the printed seed here to repeat a run
TOLERANCE = 1e-4
PROMPTS = (150, 3, 64, 101)  # tokens: more than two KV blocks, fewer than one, one exactly; beyond windows and original
FEWER_PROMPTS = (150, 101)  # of the variants that do not need all: each costs transformers 64 steps
NEW_TOKENS = 64
DRAWN = 6  # variants that the engine runs


@dataclass(frozen=True)
class ParityCase:
    """A checkpoint folder and what transformers answers on it."""

    variant: str
    seed: int
    folder: Path
    prompts: list[list[int]]
    continuations: list[list[int]]  # NEW_TOKENS greedy tokens of each prompt
    logits: list[FloatArray]  # [prompt + continuation, vocab] of each: row i predicts token i + 1
    tolerances: list[float]  # of each prompt's logits


def make_case(variant: str, seed: int, folder: Path, lengths: tuple[int, ...] = PROMPTS) -> ParityCase:
    import torch

    draw = random.Random(f"{variant} {seed}")
    torch.manual_seed(draw.getrandbits(32))
    model = make_model(variant, draw)
    dtype, *how = VARIANTS[variant][4].split()
    stored = copy.deepcopy(model).to(getattr(torch, dtype))  # a copy: this also rounds the rotary buffers
    if "mxfp4" in how:
        save_in_mxfp4(stored, folder)
    else:
        size = "20KB" if "sharded" in how else "5GB"
        stored.save_pretrained(folder, max_shard_size=size, save_original_format="fused" not in how)
    model.load_state_dict(stored.state_dict())
    vocab = model.config.vocab_size
    prompts: list[list[int]] = []
    continuations: list[list[int]] = []
    logits: list[FloatArray] = []
    tolerances: list[float] = []
    precise = copy.deepcopy(model).double()
    for length in lengths:
        while True:
            prompt = [draw.randrange(vocab) for _ in range(length)]
            new = greedy(model, prompt)
            rows, choices = logits_and_choices(model, prompt + new)
            with float32_is_float64():
                exact, exact_choices = logits_and_choices(precise, prompt + new)
            # Where transformers' own float32 is far from float64, so may be ours, which sums in another order.
            tolerance = max(TOLERANCE, 3 * float(np.abs(rows - exact).max()))
            # Logits, and scores of experts, that are each within a tolerance cannot change places over a gap of more
            # than twice of it. Nearer ties say nothing about correctness: another prompt is drawn.
            if smallest_gap(rows[length - 1 : -1], 1) > 2 * tolerance and all(
                smallest_gap(scores, chosen) > 2 * 3 * float(np.abs(scores - exact_scores).max())
                for (scores, chosen), (exact_scores, _) in zip(choices, exact_choices, strict=True)
            ):
                break
        prompts.append(prompt)
        continuations.append(new)
        logits.append(rows)
        tolerances.append(tolerance)
    return ParityCase(variant, seed, folder, prompts, continuations, logits, tolerances)


@contextmanager
def float32_is_float64() -> Generator[None]:
    """transformers asks for float32 in norms, rotations and softmax whatever the model's type is."""
    import torch

    with (
        patch.object(torch.Tensor, "float", torch.Tensor.double),
        patch.multiple(torch, float=torch.float64, float32=torch.float64),
    ):
        yield


def make_model(variant: str, draw: random.Random) -> Any:  # Any: a transformers model, untyped
    """The variant with sizes and weights drawn; norms and biases are random too."""
    import torch
    import transformers

    model = getattr(transformers, architecture_of(variant))(make_config(variant, draw)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "sinks" in name:
                parameter.normal_(2.0, 1.0)
            elif "embed" in name or "lm_head" in name:
                parameter.normal_(0.0, 0.1)  # keeps the logits near 1, where float32 errors are well below 1e-4
            elif any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj")):
                parameter.normal_(0.0, 0.13)  # sharper attention would amplify rounding errors tenfold
            else:
                parameter.normal_(0.0, 0.2)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.uniform_(-0.2, 0.2)
    return model


def save_in_mxfp4(model: Any, folder: Path) -> None:
    """With random blocks in the place of its experts' matrices, which become the numbers that transformers reads."""
    import safetensors.torch
    import torch
    from transformers.integrations import mxfp4

    model.save_pretrained(folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = parameter.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, blocks.shape[:-1], dtype=torch.uint8)  # numbers of deviation 0.2
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            parameter.data.copy_(mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """The greedy continuation with transformers' own cache."""
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
    return [int(token) for token in whole[0, len(prompt) :]]


def logits_and_choices(model: Any, tokens: list[int]) -> tuple[FloatArray, list[tuple[FloatArray, int]]]:
    """Logits of a sequence in one pass; of each of its routers the scores and how many experts or groups it took."""
    import torch

    choices: list[tuple[FloatArray, int]] = []
    topk = torch.topk

    def noting_topk(scores: Any, k: int, **more: Any) -> Any:  # Any: as torch has it
        choices.append((scores.clamp(min=-1e6).numpy(), k))  # those of other groups are -inf
        return topk(scores, k, **more)

    with torch.no_grad(), patch.object(torch, "topk", noting_topk):
        logits: FloatArray = model(torch.tensor([tokens])).logits[0].numpy()
    assert bool(choices) == hasattr(model.config, "num_experts_per_tok")
    return logits, choices


def smallest_gap(scores: FloatArray, chosen: int) -> float:
    """Between the last of those chosen in a row and the first of the others, if any."""
    ordered = np.sort(scores, axis=-1)[..., ::-1]
    return float((ordered[..., chosen - 1 : chosen] - ordered[..., chosen : chosen + 1]).min(initial=np.inf))
