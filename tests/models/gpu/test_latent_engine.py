"""A checkpoint with latent attention and experts through every actor, with the GPU's kernels interpreted: the greedy
tokens of transformers."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from ..parity_cases import make_model
from .test_engine import NEW_TOKENS, read, running, submit

PROMPTS = (70, 11)  # tokens: a block and more, in three steps; and less than one
CLEAR = 0.5  # between the two largest logits, of some 16: eight times their rounding to bfloat16
ON_GPU: dict[str, Any] = {"device": "cuda", "kernels": "interpret", "max_step_tokens": 32, "kv_cache_memory": 1 << 20}
Case = tuple[Path, list[tuple[int, ...]], list[list[int]]]  # the checkpoint, prompts, and their greedy tokens


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Always the same one. Other prompts hang on which of two experts has the larger score, which rounding decides."""
    import torch

    draw, folder = random.Random(1), tmp_path_factory.mktemp("deepseek")
    torch.manual_seed(1)
    model = make_model("deepseek-v3", draw)
    with torch.no_grad():
        model.lm_head.weight *= 8
    stored = copy.deepcopy(model).to(torch.bfloat16)  # a copy: this also rounds the rotary buffers
    stored.save_pretrained(folder)
    model.load_state_dict(stored.state_dict())
    size = model.config.vocab_size
    words = {f"word{index}": index for index in range(size)}
    Tokenizer(models.WordLevel(words, unk_token="word0")).save(str(folder / "tokenizer.json"))
    prompts, answers = list[tuple[int, ...]](), list[list[int]]()
    for length in PROMPTS:
        while True:
            prompt = [draw.randrange(size) for _ in range(length)]
            answer = greedy(model, prompt, CLEAR)
            if answer is not None and len({*answer}) > 2:
                break
        prompts.append(tuple(prompt))
        answers.append(answer)
    return folder, prompts, answers


def greedy(model: Any, prompt: list[int], clear: float = 0.0) -> list[int] | None:  # Any: a transformers model, untyped
    """The greedy tokens; None if one of them was nearly another."""
    import torch

    answer = list[int]()
    for _ in range(NEW_TOKENS):
        with torch.no_grad():
            two = model(torch.tensor([prompt + answer])).logits[0, -1].topk(2)
        if two.values[0] - two.values[1] < clear:
            return None
        answer.append(int(two.indices[0]))
    return answer


async def test_tokens_are_those_of_transformers(case: Case) -> None:
    folder, prompts, answers = case
    async with running(folder, **ON_GPU) as engine:
        outboxes = [submit(engine, prompt) for prompt in prompts]
        assert [await read(outbox) for outbox in outboxes] == answers
        before = engine.scheduler_statistics().totals.prefill_tokens
        assert await read(submit(engine, prompts[0])) == answers[0]
        assert engine.scheduler_statistics().totals.prefill_tokens - before == PROMPTS[0] - 64  # one block was cached


@pytest.mark.parametrize(
    "change", [{}, {"rope_interleave": False}, {"routed_scaling_factor": 1.0}, {"topk_group": 1}], ids=str
)
def test_only_another_configuration_has_others(case: Case, change: dict[str, Any]) -> None:
    import torch
    import transformers

    folder, prompts, answers = case
    options: dict[str, Any] = {"dtype": torch.float32, "experts_implementation": "eager", **change}
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(folder, **options)
    assert ([greedy(model, list(prompt)) for prompt in prompts] == answers) is not bool(change)
