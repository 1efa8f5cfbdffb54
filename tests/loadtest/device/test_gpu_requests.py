"""Requests in mixed steps: what a scheduler would make of them, their bits compared, and a model's values checked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec import structs

from triolet.loadtest.device import gpu_model_values as values
from triolet.loadtest.device import gpu_strict_bits as bits
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_requests import Answered, Request, answers
from triolet.loadtest.device.gpu_strict_bits import Company
from triolet.loadtest.device.random_model import LLAMA_8B, TINY
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.protocol.events import TokenLogprob
from triolet.protocol.steps import Chunk, Step

COMPANIES = (Company(1, 4), Company(1, 8))


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedGpuModel]:
    model = LoadedGpuModel(RehearsalDevice(), TINY, "none", Sizes(3, 8, 64, 1 << 17), "int8")
    yield model
    model.stepper.close()


def chunks_of(steps: list[Step]) -> list[list[tuple[int, int, int]]]:
    """(request, first token, tokens) of every chunk of every step that has any, requests counted from the first."""

    def of(chunk: Chunk) -> tuple[int, int, int]:
        return chunk.sequence - first, chunk.start, chunk.count

    first = min(chunk.sequence for step in steps for chunk in step.chunks)
    return [[of(chunk) for chunk in step.chunks] for step in steps if step.chunks]


def test_steps_are_mixed_and_a_preempted_request_is_computed_again(
    model: LoadedGpuModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    begin = model.stepper.begin_step

    def seen(step: Step) -> object:
        steps.append(step)
        return begin(step)

    monkeypatch.setattr(model.stepper, "begin_step", seen)
    requests = [Request((1, 2, 3, 4), (3,), preempted_after=2), Request((9, 8, 7, 6, 5), sampling=values.PROMPT_SCORED)]
    found, sizes = answers(model, requests, 3, strict=True, step_tokens=6)
    assert chunks_of(steps) == [
        [(0, 0, 3), (1, 0, 3)],  # cut, and the step is full
        [(0, 3, 1), (1, 3, 2)],
        [(0, 4, 1), (1, 5, 1)],
        [(1, 6, 1)],  # the first is dropped in this step, with two tokens drawn
        [(0, 0, 3)],
        [(0, 3, 3)],  # the last of its prompt and what was drawn
    ]
    assert sizes == [6, 3, 2, 1, 3, 3]
    again = [record for step in steps for record in step.new][-1]
    assert again.tokens == (1, 2, 3, 4, *found[0].tokens[:2])
    blocks = [chunk.blocks for step in steps for chunk in step.chunks if chunk.blocks]
    assert len(set(blocks)) == 3
    assert [len(answer.tokens) for answer in found] == [len(answer.drawn) for answer in found] == [3, 3]
    assert [len(answer.prompt) for answer in found] == [0, 4]


def test_bits_alone_are_compared_with_those_in_company(model: LoadedGpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, tuple[list[Answered], list[int]]] = {}
    swayed = ""

    def computed(
        model: LoadedGpuModel, requests: list[Request], tokens: int, *, strict: bool, step_tokens: int = 0
    ) -> tuple[list[Answered], list[int]]:
        """Once, since interpreting takes seconds. `swayed`: with another bit in a log probability of company."""
        key = f"{requests} {step_tokens}"
        if key not in known:
            known[key] = answers(model, requests, tokens, strict=strict, step_tokens=step_tokens)
        found, sizes = known[key]
        if swayed and len(requests) > 1:
            scores = list(getattr(found[-1], swayed))
            scores[-1] = structs.replace(scores[-1], logprob=float(np.nextafter(scores[-1].logprob, 0)))
            other = Answered(found[-1].tokens, found[-1].drawn, found[-1].prompt)
            setattr(other, swayed, scores)
            found = [*found[:-1], other]
        return found, sizes

    monkeypatch.setattr(bits, "answers", computed)
    figures = bits.check_strict(model, 3, (3, 8), COMPANIES, crossed=5)
    assert figures == {"sequences": 2, "companies": 2, "tokens": 3, "largest_step": 8}
    with pytest.raises(Wrong, match="both sides of 8 tokens"):
        bits.check_strict(model, 3, (3, 8), COMPANIES, crossed=8)
    for which, place in (("drawn", "token 2"), ("prompt", "prompt token 6")):
        swayed = which
        with pytest.raises(Wrong, match=f"8 tokens among 1 others: other bits than alone, at {place}"):
            bits.check_strict(model, 3, (3, 8), COMPANIES, crossed=5)


def test_a_missing_token_is_a_difference() -> None:
    assert bits.difference(Answered(), Answered()) == ""
    score = TokenLogprob(token_id=1, logprob=-1.0)
    assert bits.difference(Answered(drawn=[score]), Answered()) == "1 tokens, not 0"


def test_strict_and_default_log_probabilities_are_near(model: LoadedGpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = values.check_against_default(model, "int8", 10)
    assert figures["strict_apart"] <= figures["strict_apart_allowed"]
    computed = values.scored

    def other(model: LoadedGpuModel, request: Request, *, strict: bool) -> values.Float64Array:
        found = computed(model, request, strict=False)
        apart: float = 2 * figures["strict_apart_allowed"] * strict
        return found + apart

    monkeypatch.setattr(values, "scored", other)
    with pytest.raises(Wrong, match="strict log probabilities are"):
        values.check_against_default(model, "int8", 10)

    def always(model: LoadedGpuModel, request: Request, *, strict: bool) -> values.Float64Array:
        return np.full(9, -1.0)

    monkeypatch.setattr(values, "scored", always)
    with pytest.raises(Wrong, match="proves nothing"):
        values.check_against_default(model, "int8", 10)


def test_what_may_differ_grows_with_what_is_rounded() -> None:
    plain = values.allowed_apart(LLAMA_8B, "none", "bfloat16")
    assert plain == pytest.approx(10 / 256 * 0.02 * 64)  # logits of deviation 1.28
    assert plain < values.allowed_apart(LLAMA_8B, "none", "int8") < values.allowed_apart(LLAMA_8B, "none", "fp8")
    assert values.allowed_apart(LLAMA_8B, "fp8", "bfloat16") < 0.25  # below a fifth of the deviation


def test_every_format_of_the_small_model_would_notice_a_wrong_matrix() -> None:
    """By the definition alone."""
    weights, prompt = values.small_weights(values.SMALL), values.random_prompt(values.SMALL, 150)
    for quantize, of_weights in values.OF_WEIGHTS.items():
        exact, wrong = (
            values.log_probabilities(values.SMALL, values.as_stored(weights, quantize, by), prompt)
            for by in (1.0, values.WRONG_SCALE)
        )
        allowed = of_weights + max(values.OF_CACHE.values())
        assert np.abs(exact - wrong).mean() > 2 * allowed
