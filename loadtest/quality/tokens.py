"""Are greedy answers of the served engine what the reference would have answered?

    python -m triolet.loadtest.quality.tokens < ASKED        as `triolet bench peers` does

ASKED is {"model", "settings", "answers": [{"prompt": […], "tokens": […]}]}, the settings those the answers were made
with. Each answer is judged by one pass over prompt and answer: if every token of it is the largest logit of the row
before, greedy decoding gives that answer. Twice: with the CPU runner on the same packed weights, where every token must
be equal (the engine decoded in a batch, with a cache, in a worker of its own); and with the decoder's definition,
models/reference/decoder.py, on weights rounded as that format rounds them. The definition rounds neither activations
nor the cache, so a near tie may fall the other way there: `worst_gap` is how far the token's logit was under the
definition's largest, in standard deviations of its row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from triolet.kernels.gemm.reference import rounded_weights
from triolet.kernels.simd.formats import WeightFormat
from triolet.loadtest.quality.logits import load_on_cpu, logits_of
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.safetensors import WeightArray, to_float32
from triolet.models.checkpoint.weights import DecoderWeights, load_weights
from triolet.models.reference.decoder import reference_logits

Float32Array = npt.NDArray[np.float32]
Logits = Callable[[list[int]], Float32Array]


class Judged(msgspec.Struct, frozen=True):
    tokens: int
    equal: int
    worst_gap: float


def judge(answers: list[tuple[list[int], list[int]]], logits: Logits) -> Judged:
    """How many tokens of (prompt, answer) are the first of the largest logits before them."""
    tokens = equal = 0
    worst = 0.0
    for prompt, answer in answers:
        rows = logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        tokens += len(answer)
        equal += int((rows.argmax(axis=1) == np.array(answer)).sum())
        gaps = (rows.max(axis=1) - rows[np.arange(len(answer)), answer]) / rows.std(axis=1)
        worst = max(worst, float(gaps.max()))
    return Judged(tokens, equal, worst)


def rounded(weights: DecoderWeights, weight_format: WeightFormat) -> DecoderWeights:
    """The weights as the format keeps them, in float32. Norms and the embedding's rows are not rounded."""

    def matrix(values: WeightArray) -> WeightArray:
        return rounded_weights(to_float32(values), weight_format).astype(np.float32)

    names = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        msgspec.structs.replace(layer, **{name: matrix(getattr(layer, name)) for name in names})
        for layer in weights.layers
    )
    head = weights.embedding if weights.lm_head is None else weights.lm_head
    return msgspec.structs.replace(weights, layers=layers, lm_head=matrix(head))


def check(model: Path, settings: dict[str, Any], answers: list[tuple[list[int], list[int]]]) -> dict[str, Any]:
    runner = load_on_cpu(model, settings)

    def by_runner(tokens: list[int]) -> Float32Array:
        return np.concatenate([part.copy() for _, part in logits_of(runner, tokens)])

    ours = judge(answers, by_runner)
    runner.close()
    checkpoint = open_checkpoint(model)
    weights = rounded(load_weights(checkpoint), runner.sizes.weight_format)
    defined = judge(answers, lambda tokens: reference_logits(checkpoint.spec, weights, tokens))
    return {
        "tokens": ours.tokens,
        "equal_runner": ours.equal,
        "equal_definition": defined.equal,
        "worst_gap": defined.worst_gap,
    }


def main() -> None:
    asked = json.load(sys.stdin)
    answers = [(each["prompt"], each["tokens"]) for each in asked["answers"]]
    print(json.dumps(check(Path(asked["model"]), asked["settings"], answers)))


if __name__ == "__main__":
    main()
