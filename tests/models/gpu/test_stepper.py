"""Steps on the rehearsal device, with the next one launched before the last is read: the tokens of the CPU path.

The interpreter is slow, so one model serves all tests, each with sequences of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from triolet.kernels.sampling.rows import mask_words
from triolet.kernels.step_inputs.gpu import scatter_kernel
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.gpu.device import Growth
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.packet import HostBuffers
from triolet.models.gpu.sequences import Pieces
from triolet.models.gpu.stepper import GpuStepper
from triolet.protocol.steps import BlockCopy, Chunk, Row, SequenceRecord

from .gpu_house import MAX_RUNNING, MAX_TOKENS, SPEC, Driver, make_cpu_stepper, make_gpu_model, prompt_of, record


@pytest.fixture(scope="module")
def model() -> GpuModel:
    return make_gpu_model()


@pytest.fixture(scope="module")
def gpu(model: GpuModel) -> Iterator[GpuStepper]:
    stepper = GpuStepper(model)
    yield stepper
    stepper.close()


@pytest.fixture(scope="module")
def cpu() -> CpuStepper:
    return make_cpu_stepper()


def mixed_scenario(driver: Driver) -> dict[int, list[int]]:
    """Chunked prompts, decode-only and mixed steps, a block boundary, a sequence preempted, others gone in mid-air."""
    a, b, c = prompt_of(9, 1), prompt_of(4, 2), prompt_of(64, 3)
    driver.step(Chunk(sequence=1, start=0, count=5, blocks=(3,)), new=[record(1, a)])
    driver.step(
        Chunk(sequence=1, start=5, count=4, sample=True),
        Chunk(sequence=2, start=0, count=4, blocks=(0,), sample=True),
        new=[record(2, b)],
    )
    driver.step(Chunk(sequence=1, start=9, count=1, sample=True), Chunk(sequence=2, start=4, count=1, sample=True))
    # Its first 60 positions are blocks of zeros, in every runner alike: a long prompt would take the interpreter long.
    driver.step(
        Chunk(sequence=2, start=5, count=1, sample=True),
        Chunk(sequence=3, start=60, count=4, blocks=(7,), sample=True),
        Chunk(sequence=1, start=10, count=1, sample=True),
        new=[record(3, c)],
    )
    driver.step(
        Chunk(sequence=3, start=64, count=1, blocks=(5,), sample=True),
        Chunk(sequence=1, start=11, count=1, sample=True),
        dropped=[2],
    )
    driver.step(Chunk(sequence=3, start=65, count=1, sample=True))
    seen = {number: driver.tokens(number) for number in (1, 2, 3)}
    # Preempted: all of sequence 1 is computed again, in other blocks, in the company of 3.
    so_far = (*a, *seen[1])
    driver.step(
        Chunk(sequence=3, start=66, count=1, sample=True),
        Chunk(sequence=1, start=0, count=10, blocks=(9,)),
        new=[record(1, so_far, 9)],
        dropped=[1],
    )
    driver.step(
        Chunk(sequence=1, start=10, count=len(so_far) - 10, sample=True),
        Chunk(sequence=3, start=67, count=1, sample=True),
    )
    driver.step(Chunk(sequence=1, start=len(so_far), count=1, sample=True))
    result = {number: driver.tokens(number) for number in (1, 2, 3)}
    driver.drop(1, 3)
    return result


def test_greedy_tokens_are_those_of_the_cpu(gpu: GpuStepper, cpu: CpuStepper) -> None:
    expected = mixed_scenario(Driver(cpu))
    assert mixed_scenario(Driver(gpu, ahead=True)) == expected
    assert [len(tokens) for tokens in expected.values()] == [6, 3, 5]
    assert len({token for tokens in expected.values() for token in tokens}) > 6  # they are no constant


def test_masks_are_filled_while_the_device_computes_the_layers(
    gpu: GpuStepper, model: GpuModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They decide the draw all the same."""
    fill, prompt, enqueued = HostBuffers.fill_masks, prompt_of(2, 4), list[int]()

    def after_layers(host: HostBuffers, pieces: Pieces) -> None:
        model.device.synchronize()
        enqueued.extend(int(token) for token in model.buffers["ids"][:2])
        fill(host, pieces)

    monkeypatch.setattr(HostBuffers, "fill_masks", after_layers)
    mask = np.zeros(mask_words(SPEC.vocab_size), np.uint32)
    mask[2] = 1 << 5
    driver = Driver(gpu)
    chunk = Chunk(sequence=15, start=0, count=2, blocks=(1,), sample=True)
    driver.step(chunk, new=[record(15, prompt, allowed_tokens=mask.tobytes())])
    assert driver.tokens(15) == [2 * 32 + 5]
    assert enqueued == list(prompt)
    driver.step(dropped=[15])


def test_sampling_parameters_reach_their_rows(gpu: GpuStepper) -> None:
    """A bias large enough decides alone; a ban and a penalty beat it, with the counts kept on the device."""
    bias = [(7, 400.0), (8, 250.0), (9, 100.0)]
    records = [
        record(11, prompt_of(2, 4), logit_bias=bias, frequency_penalty=100.0),
        record(12, prompt_of(2, 5), logit_bias=bias, presence_penalty=200.0),
        record(13, prompt_of(2, 6), stop=(7,), logit_bias=bias, min_tokens=2, temperature=1.0, seed=5, logprobs=2),
    ]
    driver = Driver(gpu, ahead=True)
    chunks = [Chunk(sequence=11 + index, start=0, count=2, blocks=(index,), sample=True) for index in range(3)]
    driver.step(*chunks, new=records)
    for start in (2, 3):
        driver.step(*(Chunk(sequence=number, start=start, count=1, sample=True) for number in (13, 11, 12)))
    assert [driver.tokens(number) for number in (11, 12, 13)] == [[7, 7, 8], [7, 8, 7], [8, 8, 7]]
    scores = {number: [row.logprobs for step in driver.results for row in step if row.sequence == number]
              for number in (11, 13)}  # fmt: skip
    assert scores[11] == [(), (), ()]
    for (score,), token in zip(scores[13], (8, 8, 7), strict=True):
        assert score.token_id == token
        assert len(score.top) == 2
        assert score.logprob is not None
        assert score.logprob <= score.top[0].logprob <= 0.0
    # Dropped and sent again: the counts on the device are made anew, from the record.
    again = record(11, (*prompt_of(2, 4), 7, 7), 2, logit_bias=bias, frequency_penalty=100.0)
    driver.step(Chunk(sequence=11, start=0, count=4, blocks=(9,), sample=True), new=[again], dropped=[11, 12, 13])
    driver.step(Chunk(sequence=11, start=4, count=1, sample=True))
    assert driver.tokens(11)[3:] == [8, 7]
    driver.drop(11)


def test_prompt_log_probabilities_in_several_passes(gpu: GpuStepper, cpu: CpuStepper) -> None:
    """More rows than one pass has. Ten roundings of 2^-9 to logits of up to 16 leave 0.1, twice of it is allowed."""
    results: list[Row] = []
    for stepper in (gpu, cpu):
        driver = Driver(stepper)
        chunk = Chunk(sequence=21, start=0, count=7, blocks=(2,), sample=True, prompt_logprobs=True)
        driver.step(chunk, new=[record(21, prompt_of(7, 8), prompt_logprobs=1)])
        results.append(driver.drain()[0][0])
        driver.drop(21)
    on_gpu, on_cpu = ([score.logprob or 0.0 for score in result.prompt_logprobs] for result in results)
    assert results[0].tokens == results[1].tokens
    assert [score.token_id for score in results[0].prompt_logprobs] == list(prompt_of(7, 8)[1:])
    assert np.abs(np.subtract(on_gpu, on_cpu)).max() < 0.2
    assert np.abs(np.subtract(on_gpu, np.roll(on_cpu, 1))).max() > 0.2


def test_copied_blocks_serve_another_sequence(gpu: GpuStepper) -> None:
    prompt, driver = prompt_of(64, 9), Driver(gpu)
    driver.step(Chunk(sequence=31, start=58, count=6, blocks=(1,), sample=True), new=[record(31, prompt)])
    twin = Chunk(sequence=32, start=63, count=1, blocks=(6,), sample=True)
    driver.step(twin, new=[record(32, prompt)], copies=[BlockCopy(1, 6)])
    assert driver.tokens(32) == driver.tokens(31)
    with pytest.raises(ValueError, match="source and target in one step"):
        driver.step(copies=[BlockCopy(1, 6), BlockCopy(6, 2)])
    driver.drop(31, 32)


def choices_of_a_prompt(driver: Driver, *copies: BlockCopy) -> list[tuple[int, float | None]]:
    """What three choices draw, and how likely. Two of them get the first one's block, or compute the prompt anew."""
    prompt = prompt_of(9, 10)
    records = [record(number, prompt, logit_bias=[(number, 400.0)], logprobs=0) for number in (33, 34, 35)]
    driver.step(Chunk(sequence=33, start=0, count=9, blocks=(3,), sample=True), new=records[:1])
    driver.step(Chunk(sequence=33, start=9, count=1, sample=True))  # behind the prompt, in the block that is copied
    first = [Chunk(sequence=number, start=0, count=8, blocks=(number - 30,)) for number in (34, 35)]
    if not copies:
        driver.step(first[0], new=records[1:2])
        driver.step(first[1], new=records[2:])
    driver.step(
        *(Chunk(sequence=number, start=8, count=1, blocks=(number - 30,) if copies else (), sample=True)
          for number in (34, 35)),
        new=records[1:] if copies else [],
        copies=copies,
    )  # fmt: skip
    driver.step(*(Chunk(sequence=number, start=9, count=1, sample=True) for number in (34, 35)))
    driver.step(Chunk(sequence=33, start=10, count=1, sample=True), dropped=[34, 35])
    driver.step(dropped=[33])
    return [(token, score.logprob) for step in driver.drain() for row in step
            for token, score in zip(row.tokens, row.logprobs, strict=True)]  # fmt: skip


def test_a_copied_block_that_is_half_full_serves_other_choices(gpu: GpuStepper) -> None:
    """As choices of one request share a prompt: its last block is copied, and behind it each writes its own."""
    expected = choices_of_a_prompt(Driver(gpu, ahead=True))
    assert [token for token, _ in expected] == [33, 33, 34, 35, 34, 35, 33]
    copied = choices_of_a_prompt(Driver(gpu, ahead=True), BlockCopy(3, 4), BlockCopy(3, 5))
    assert copied == expected
    wrong = choices_of_a_prompt(Driver(gpu, ahead=True), BlockCopy(3, 4), BlockCopy(2, 5))
    assert wrong[3] != expected[3]


def test_bad_steps_are_refused_by_name(gpu: GpuStepper) -> None:
    driver = Driver(gpu)
    driver.step(new=[record(41, (1, 2))])
    for chunk, message in (
        (Chunk(sequence=49, start=0, count=1), "sequence 49 is not known"),
        (Chunk(sequence=41, start=0, count=3), "of 2 tokens"),
        (Chunk(sequence=41, start=0, count=2), "0 blocks do not hold 2 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            driver.step(chunk)
    with pytest.raises(ValueError, match="already here"):
        driver.step(new=[record(41, (1, 2))])
    with pytest.raises(ValueError, match="token ids below"):
        driver.step(new=[record(42, (1, SPEC.vocab_size))])
    driver.drop(41)


def test_nothing_is_allocated_or_compiled_after_ready(model: GpuModel, gpu: GpuStepper) -> None:
    """Over the edges of every bucket. One of each, planted, is counted."""
    driver, rng, number = Driver(gpu, ahead=True), np.random.default_rng(3), 50
    for lengths in ([1], [2, 1], [1, 1, 1], [MAX_TOKENS], [5, 1, 3], [MAX_TOKENS - 2, 1, 1][:MAX_RUNNING]):
        chunks: list[Chunk] = []
        new: list[SequenceRecord] = []
        for length in lengths:
            number += 1
            sampling: dict[str, Any] = {
                "temperature": float(rng.integers(0, 2)),
                "top_k": int(rng.integers(0, 4)),
                "seed": number,
            }
            new.append(record(number, prompt_of(length, number), **sampling, logprobs=int(rng.integers(0, 3))))
            chunks.append(Chunk(sequence=number, start=0, count=length, blocks=(len(new),), sample=True))
        driver.step(*chunks, new=new, dropped=range(number - 10, number - len(lengths) + 1))
    driver.drain()
    assert model.device.growth() == Growth(0, 0)
    assert {(done.device_allocations, done.device_compilations) for done in driver.done} == {(0, 0)}
    model.device.run(lambda: model.packet.slot_rows + 1)
    assert model.device.growth() == Growth(1, 0)
    model.device.run(lambda: scatter_kernel[(1,)](*[model.packet.slot_rows] * 3, 0, BLOCK=16))
    assert model.device.growth() == Growth(1, 1)
    driver.step()
    driver.drain()
    assert (driver.done[-1].device_allocations, driver.done[-1].device_compilations) == (1, 1)
