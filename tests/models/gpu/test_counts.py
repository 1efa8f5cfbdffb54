"""Counts of seen tokens on the device: a line for every sequence of a step, and exact whoever had the line before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from triolet.models.gpu.sampler import sampler_layout
from triolet.models.gpu.stepper import GpuStepper
from triolet.protocol.steps import Chunk

from .gpu_house import Driver, make_gpu_model, prompt_of, record

RUNNING = 2


def test_counts_have_lines_for_the_sequences_of_one_step() -> None:
    """A third of all slots: 156 MB in place of 467 for 256 sequences and a vocabulary of 152k."""
    (lines, vocab), dtype = sampler_layout(152_000, 256, 3 * 256, 90).entries["seen"]
    assert (lines, vocab, dtype) == (256, 152_000, torch.int32)


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuStepper]:
    stepper = GpuStepper(make_gpu_model(max_running=RUNNING, max_tokens=RUNNING))
    yield stepper
    stepper.close()


def test_counts_survive_the_loss_of_their_slots(gpu: GpuStepper) -> None:
    """Twice as many sequences with penalties as have lines take turns, each step taking those of the one in flight.

    The bias decides alone: logits are below 16, and its steps 40 apart. So does the device's count of what was drawn.
    """
    biases = {number: {7: 430 + 90 * number, 8: 290 + 90 * number, 9: 150} for number in range(2 * RUNNING)}
    expected = {number: list[int]() for number in biases}
    new = [
        record(60 + number, prompt_of(1, number), logit_bias=[*bias.items()], frequency_penalty=100.0)
        for number, bias in biases.items()
    ]
    driver = Driver(gpu, ahead=True)
    # The last turn is two steps of the same sequences, one after another: their slots stay with them.
    for turn, group in enumerate((0, 1, 0, 1, 0, 0)):
        chunks = list[Chunk]()
        for number in range(group * RUNNING, (group + 1) * RUNNING):
            done = expected[number]
            blocks = () if done else (number,)
            chunks.append(Chunk(sequence=60 + number, start=len(done), count=1, blocks=blocks, sample=True))
            done.append(max(biases[number], key=lambda token: biases[number][token] - 100 * done.count(token)))
        driver.step(*chunks, new=[] if turn else new)
    found = {number: driver.tokens(60 + number) for number in biases}
    driver.drop(*range(60, 60 + len(biases)))
    assert found == expected
    assert {tuple(tokens) for tokens in expected.values()} >= {(7, 7, 8, 7), (7, 7)}
