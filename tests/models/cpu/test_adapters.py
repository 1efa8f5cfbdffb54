"""LoRA adapters on the CPU: the logits of merged weights, row by row, in any company."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.simd.formats import WeightFormat
from triolet.loadtest.device.random_adapter import merged, random_adapter, scaled
from triolet.models.checkpoint.adapter import MODULES, AdapterWeights
from triolet.models.cpu import stepper
from triolet.models.cpu.adapters import PackedAdapter, adapter_bytes
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.errors import DoesNotFit, UnsupportedModel
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk as StepChunk
from triolet.protocol.steps import SequenceRecord, Step

from ..adapter_cases import write_adapter
from .test_cpu import SPECS, Chunk, batch_of, decoder_reference, error, make_runner, prompt_of, weights_of

PROMPT = 90
FORMATS: list[WeightFormat] = ["float32", "bfloat16", "int8", "int4"]
LLAMA = "llama-gqa-ragged-mlp"
FloatArray = npt.NDArray[np.float32]


def loaded(runner: CpuRunner, adapter: AdapterWeights) -> PackedAdapter:
    packed = runner.pack_adapter(adapter)
    runner.add_adapter(packed)
    return packed


def forward(runner: CpuRunner, chunks: list[Chunk], adapters: list[PackedAdapter | None]) -> FloatArray:
    places = np.array([0 if adapter is None else adapter.address for adapter in adapters], np.int64)
    return runner.forward(msgspec.structs.replace(batch_of(chunks), adapters=places)).copy()


@pytest.mark.parametrize("name", list(SPECS))
def test_float32_logits_are_those_of_merged_weights(name: str) -> None:
    """Within the bound of float32 (see test_cpu.py); a scale that is off by a thousandth is rejected."""
    spec, base, tokens = SPECS[name], weights_of(name), prompt_of(name, PROMPT)
    adapter, runner = random_adapter(spec, 1), make_runner(name, "float32", adapters=True)
    logits = forward(runner, [Chunk(tokens, 0, [7, 3])], [loaded(runner, adapter)])
    runner.close()
    assert error(logits, decoder_reference(spec, merged(base, adapter), tokens)) < 3e-6
    assert error(logits, decoder_reference(spec, merged(base, scaled(adapter, 1.001)), tokens)) > 3e-6


def test_each_module_may_be_adapted_alone_with_any_rank() -> None:
    """A rank of 5 is padded, one of 40 takes three panels and makes room for it anew."""
    spec, base, tokens = SPECS[LLAMA], weights_of(LLAMA), prompt_of(LLAMA, 20)
    runner = make_runner(LLAMA, "float32", adapters=True)
    for rank, module in enumerate(MODULES, 37):
        adapter = random_adapter(spec, 2, rank=rank if module != "k_proj" else 5, modules=(module,))
        logits = forward(runner, [Chunk(tokens, 0, [7])], [loaded(runner, adapter)])
        assert error(logits, decoder_reference(spec, merged(base, adapter), tokens)) < 3e-6
        assert error(logits, decoder_reference(spec, base, tokens)) > 3e-6
    runner.close()


@pytest.mark.parametrize("weight_format", FORMATS[1:])
def test_beside_rounded_weights_an_adapter_loses_no_more_than_they_do(weight_format: WeightFormat) -> None:
    """The adapter's own bfloat16 adds a rounding of 2**-9 to a part that is a fifth: the bound is the base's alone."""
    spec, base, tokens = SPECS[LLAMA], weights_of(LLAMA), prompt_of(LLAMA, PROMPT)
    adapter, runner = random_adapter(spec, 1), make_runner(LLAMA, weight_format, adapters=True)
    logits = forward(runner, [Chunk(tokens, 0, [7, 3])], [loaded(runner, adapter)])
    without = forward(runner, [Chunk(tokens, 0, [7, 3])], [None])
    runner.close()
    exact = decoder_reference(spec, merged(base, adapter), tokens)
    rounded = decoder_reference(spec, base, tokens, weight_format)
    bound = 1.5 * error(rounded, decoder_reference(spec, base, tokens))
    assert error(logits, exact) < bound < error(without, exact)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_rows_are_the_same_beside_other_adapters(weight_format: WeightFormat) -> None:
    """In one batch: every bit of a row's logits is that of its sequence alone, and without an adapter that of today."""
    runner, rng = make_runner(LLAMA, weight_format, adapters=True), np.random.default_rng(3)
    tokens = prompt_of(LLAMA, PROMPT)
    adapters: list[PackedAdapter | None] = [None]
    adapters += [loaded(runner, random_adapter(SPECS[LLAMA], seed, rank=8 * seed)) for seed in (1, 2, 3)]
    alone = [forward(runner, [Chunk(tokens, 0, [7, 3])], [adapter]) for adapter in adapters]
    np.testing.assert_array_equal(alone[0], runner.forward(batch_of([Chunk(tokens, 0, [7, 3])])))
    assert len({logits.tobytes() for logits in alone}) == len(adapters)
    places, rows = [0] * len(adapters), [list[FloatArray]() for _ in adapters]
    while min(places) < PROMPT:
        chunks, order = list[Chunk](), list[int]()
        numbers: list[int] = rng.permutation(len(adapters)).tolist()
        for number in numbers:
            if count := min(int(rng.choice([1, 1, 7, 30])), PROMPT - places[number]):
                start = places[number]
                chunks.append(Chunk(tokens[start : start + count], start, [2 * number, 2 * number + 1]))
                order.append(number)
                places[number] += count
        logits = forward(runner, chunks, [adapters[number] for number in order])
        starts = np.cumsum([0, *(len(chunk.tokens) for chunk in chunks)])
        for index, number in enumerate(order):
            rows[number].append(logits[starts[index] : starts[index + 1]])
    runner.close()
    for whole, parts in zip(alone, rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_sequences_of_a_stepper_name_their_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy answers are those of merged weights, also in steps that only advance; forgetting ends no answer."""
    spec, runner = SPECS[LLAMA], make_runner(LLAMA, "float32", adapters=True)
    worker = CpuStepper(runner)
    given: dict[int, AdapterWeights] = {4: random_adapter(spec, 1, scale=0.5), 9: random_adapter(spec, 2, scale=0.5)}
    for number, adapter in given.items():
        worker.read_adapter(number, str(write_adapter(tmp_path / str(number), adapter)))()
    prompt = prompt_of(LLAMA, 10).tolist()
    records = tuple(
        SequenceRecord(
            sequence=number, tokens=tuple(prompt), prompt_tokens=10, sampling=Sampling(temperature=0.0),
            stop_token_ids=(), adapter=number,
        )
        for number in (4, 0, 9)
    )  # fmt: skip
    first = tuple(StepChunk(sequence=r.sequence, start=0, count=10, blocks=(r.sequence,), sample=True) for r in records)
    answers: dict[int, list[int]] = {record.sequence: [] for record in records}
    for step in range(6):
        chunks = first
        if step:
            chunks = tuple(StepChunk(sequence=n, start=9 + step, count=1, sample=True) for n in answers)
        done = worker.begin_step(Step(step=step, chunks=chunks, new=() if step else records)).wait()
        for row in done.rows:
            answers[row.sequence] += row.tokens
        worker.forget_adapter(4)
    for number, answer in answers.items():
        weights = weights_of(LLAMA) if number == 0 else merged(weights_of(LLAMA), given[number])
        logits = reference_logits(spec, weights, prompt + answer)
        assert logits[9:-1].argmax(axis=1).tolist() == answer
    assert len({tuple(answer) for answer in answers.values()}) == 3
    with pytest.raises(ValueError, match="adapter 4 of sequence 4 is not known here"):
        worker.begin_step(Step(step=9, chunks=(), new=records[:1], dropped=(4,)))
    monkeypatch.setattr(stepper, "available_memory", lambda: 2 * runner.adapter_bytes(given[9]) - 1)
    with pytest.raises(DoesNotFit, match="unload another adapter, or lower --kv-cache-memory"):
        worker.read_adapter(5, str(tmp_path / "9"))
    with pytest.raises(UnsupportedModel, match="use_dora"):
        worker.read_adapter(5, str(write_adapter(tmp_path / "dora", given[9], use_dora=True)))
    worker.close()


def test_a_runner_without_adapters_refuses_one() -> None:
    runner = make_runner(LLAMA, "float32")
    with pytest.raises(ValueError, match="set `adapters` of its sizes"):
        runner.pack_adapter(random_adapter(SPECS[LLAMA], 1))
    runner.close()


def test_the_stated_size_is_what_is_packed() -> None:
    runner, adapter = make_runner(LLAMA, "int8", adapters=True), random_adapter(SPECS[LLAMA], 1, rank=20)
    packed = loaded(runner, adapter)
    assert packed._packed.nbytes == packed._used == adapter_bytes(runner._shape, adapter, "bfloat16")
    assert runner.adapter_bytes(adapter) == packed._used  # its working memory is there now
    runner.close()
