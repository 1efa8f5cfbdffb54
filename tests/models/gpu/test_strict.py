"""Strict determinism on the rehearsal device: the bits of a request do not depend on batch, chunks or preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from triolet.loadtest.device.gpu_model_values import small_weights
from triolet.models.gpu import sequences as gpu_sequences
from triolet.models.gpu import stepper as gpu_stepper
from triolet.models.gpu.stepper import GpuStepper
from triolet.protocol.events import TokenLogprob
from triolet.protocol.steps import Chunk, SequenceRecord

from .gpu_house import LATENT, Driver, make_gpu_model, prompt_of, record

# Its first 128 positions are blocks of noise, which no test writes: a long prompt would take the interpreter long. With
# three pages of context a decode row is summed in two parts, and prefill in one.
START, LENGTH = 128, 11
PROMPT = prompt_of(START + LENGTH, 40)
NOISE = (0, 1)
DRAWS = 4
Answer = tuple[list[int], list[TokenLogprob], list[TokenLogprob]]  # tokens, their scores, those of the prompt


@pytest.fixture(scope="module", params=["bfloat16", "fp8", "latent vectors"])
def gpu(request: pytest.FixtureRequest) -> Iterator[GpuStepper]:
    generator = torch.Generator().manual_seed(7)
    if request.param == "latent vectors":
        model = make_gpu_model(spec=LATENT, weights=small_weights(LATENT))
    else:
        model = make_gpu_model(kv_cache_dtype=request.param)
    for cache in model.caches:
        for part in (cache.keys, cache.values):
            part[list(NOISE)] = torch.randn(part[: len(NOISE)].shape, generator=generator).to(part.dtype)
        for scales in (cache.key_scales, cache.value_scales):
            if scales is not None:
                scales[list(NOISE)] = 1.0
    stepper = GpuStepper(model)
    yield stepper
    stepper.close()


class Life:
    """One request from its first chunk to its last token, with what happens beside it. Positions count from START."""

    def __init__(self, gpu: GpuStepper) -> None:
        self._driver = Driver(gpu, ahead=True)
        self._tokens: list[int] = []
        self._scores: list[TokenLogprob] = []
        self._prompt: list[TokenLogprob] = []

    def step(self, *beside: Chunk, start: int, count: int, block: int | None = None, **other: Any) -> None:
        """A chunk of the request; it draws where the chunk ends at the last token."""
        total = LENGTH + len(self._tokens)
        new: list[SequenceRecord] = [*other.pop("new", [])]  # of the neighbours
        if block is not None:
            request = record(
                1, (*PROMPT, *self._tokens), len(PROMPT), temperature=0.8, seed=3, logprobs=3, prompt_logprobs=2,
                strict=True,
            )  # fmt: skip
            new.append(request)
        mine = Chunk(
            sequence=1, start=START + start, count=count, blocks=() if block is None else (*NOISE, block),
            sample=start + count == total, prompt_logprobs=start < LENGTH - 1 and not self._tokens,
        )  # fmt: skip
        self._driver.step(mine, *beside, new=new, **other)
        for row in self._driver.drain()[-1]:
            if row.sequence == 1:
                assert not row.error
                self._tokens += row.tokens
                self._scores += row.logprobs
                self._prompt += row.prompt_logprobs

    def drop(self, *sequences: int) -> None:
        self._driver.step(dropped=list(sequences))
        self._driver.drain()

    def answer(self) -> Answer:
        self.drop(1, 2)
        return self._tokens, self._scores, self._prompt


def alone(gpu: GpuStepper) -> Answer:
    life = Life(gpu)
    life.step(start=0, count=11, block=2)
    for position in range(11, 11 + DRAWS - 1):
        life.step(start=position, count=1)
    return life.answer()


def in_company(gpu: GpuStepper) -> Answer:
    """Chunks of 3, 1 and 7, a neighbour that is prefilled and then decodes, in another block."""
    life, other = Life(gpu), prompt_of(5, 41)
    life.step(start=0, count=3, block=7)
    life.step(Chunk(sequence=2, start=0, count=3, blocks=(4,)), start=3, count=1, new=[record(2, other)])
    life.step(Chunk(sequence=2, start=3, count=2, sample=True), start=4, count=7)
    life.step(Chunk(sequence=2, start=5, count=1, sample=True), start=11, count=1)
    life.step(start=12, count=1)
    life.step(Chunk(sequence=2, start=6, count=1, sample=True), start=13, count=1)
    return life.answer()


def preempted(gpu: GpuStepper) -> Answer:
    """After two tokens all is computed again, in chunks that mix prompt and drawn tokens, in another block."""
    life = Life(gpu)
    life.step(start=0, count=11, block=2)
    life.step(start=11, count=1)
    life.drop(1)
    life.step(start=0, count=4, block=8)
    life.step(start=4, count=9)  # 7 of the prompt, 2 drawn; the pass takes 3 pieces at most
    life.step(start=13, count=1)
    return life.answer()


@pytest.fixture(scope="module")
def expected(gpu: GpuStepper) -> Answer:
    return alone(gpu)


def test_alone_and_in_company(gpu: GpuStepper, expected: Answer) -> None:
    assert len(expected[0]) == len(expected[1]) == DRAWS
    assert len(expected[2]) == LENGTH - 1
    assert in_company(gpu) == expected


def test_computed_again_after_a_preemption(gpu: GpuStepper, expected: Answer) -> None:
    assert preempted(gpu)[:2] == expected[:2]


@pytest.mark.parametrize(("company", "fault"), [(in_company, "lead"), (preempted, "tail")])
def test_without_the_rewriting_bits_differ(
    gpu: GpuStepper,
    expected: Answer,
    monkeypatch: pytest.MonkeyPatch,
    company: Callable[[GpuStepper], Answer],
    fault: str,
) -> None:
    """The checks above can fail: by a prompt's token as a decode row, by a drawn one in prefill."""
    if fault == "lead":

        def no_lead(_sequence: object, _start: int) -> int:
            return 0

        monkeypatch.setattr(gpu_sequences.DeviceSequence, "lead", no_lead)
    else:
        monkeypatch.setattr(gpu_stepper, "as_first_computed", iter)
    compared = 3 if fault == "lead" else 2
    assert company(gpu)[:compared] != expected[:compared]
