"""Steps are cut to what a runner holds, in order, and put back together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights, LayerWeights, NormWeights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.steps.sequences import Piece, SequenceState, SequenceTable
from triolet.models.steps.steps import join, split
from triolet.protocol.events import TokenLogprob
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import BlockCopy, Chunk, Row, SequenceRecord, Step

SPEC = ModelSpec(
    family="llama", vocab_size=40, hidden_size=16, layers=alike(1), num_heads=2, num_kv_heads=1, head_dim=8,
    mlp_size=24, norm_eps=1e-5, max_position=128, tied_embeddings=True,
)  # fmt: skip
PROMPT = tuple(int(token) for token in np.random.default_rng(0).integers(0, 40, 70))


def weights() -> DecoderWeights:
    rng = np.random.default_rng(1)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 0.3).astype(np.float32)

    ones = np.ones(16, np.float32)
    layer = LayerWeights(
        q=matrix(16, 16), k=matrix(8, 16), v=matrix(8, 16), o=matrix(16, 16), gate=matrix(24, 16), up=matrix(24, 16),
        down=matrix(16, 24), input_norm=NormWeights(ones), mlp_norm=NormWeights(ones),
    )  # fmt: skip
    return DecoderWeights(embedding=matrix(40, 16), layers=(layer,), final_norm=NormWeights(ones), lm_head=None)


@pytest.fixture(scope="module")
def runner() -> Iterator[CpuRunner]:
    sizes = CpuSizes(weight_format="float32", num_blocks=8, max_step_tokens=128, max_logit_rows=128, max_model_len=128)
    runner = CpuRunner(SPEC, weights(), sizes)
    yield runner
    runner.close()


class Narrow:
    """A runner that says it holds less than it does."""

    def __init__(self, runner: CpuRunner, tokens: int, rows: int) -> None:
        self.spec, self.sizes = runner.spec, replace(runner.sizes, max_step_tokens=tokens, max_logit_rows=rows)
        self.forward, self.copy_blocks, self.close = runner.forward, runner.copy_blocks, runner.close


def make_stepper(runner: CpuRunner, tokens: int = 128, rows: int = 128) -> CpuStepper:
    return CpuStepper(Narrow(runner, tokens, rows))  # type: ignore[arg-type]  # what a stepper asks of a runner


def run_step(stepper: CpuStepper, step: Step) -> tuple[Row, ...]:
    pending = stepper.begin_step(step)
    assert pending.computed
    done = pending.wait()
    assert (done.step, done.device_allocations) == (step.step, 0)
    assert 0 <= done.model_duration <= done.duration
    return done.rows


def sequence(number: int, **sampling: Any) -> SequenceRecord:
    return SequenceRecord(
        sequence=number, tokens=PROMPT, prompt_tokens=len(PROMPT), sampling=Sampling(**sampling), stop_token_ids=()
    )  # fmt: skip


def test_a_step_larger_than_the_runner_runs_in_parts(runner: CpuRunner) -> None:
    def run(**limits: int) -> tuple[Row, ...]:
        step = Step(
            step=1,
            new=(sequence(1, seed=3, prompt_logprobs=2), sequence(2, seed=4, logprobs=1)),
            chunks=(
                Chunk(sequence=1, start=0, count=50, blocks=(0,), prompt_logprobs=True),
                Chunk(sequence=2, start=0, count=70, blocks=(3, 4), sample=True),
            ),
        )
        rest = Chunk(sequence=1, start=50, count=20, blocks=(1,), sample=True, prompt_logprobs=True)
        stepper = make_stepper(runner, **limits)
        return run_step(stepper, step) + run_step(stepper, Step(step=2, chunks=(rest,)))

    whole = run()
    assert [len(chunk.prompt_logprobs) for chunk in whole] == [50, 0, 19]
    assert run(rows=1) == whole
    assert run(rows=7) == whole
    assert run(tokens=9, rows=4) == whole


def test_copied_blocks_and_dropped_sequences(runner: CpuRunner) -> None:
    """A copy of a block serves another sequence as the original does; a dropped id may come again."""
    stepper = make_stepper(runner)
    whole = Chunk(sequence=1, start=0, count=70, blocks=(0, 1), sample=True)
    first = run_step(stepper, Step(step=1, new=(sequence(1, seed=3),), chunks=(whole,)))
    suffix = Chunk(sequence=2, start=64, count=6, blocks=(5, 6), sample=True)
    copied = run_step(
        stepper, Step(step=2, new=(sequence(2, seed=3),), copies=(BlockCopy(0, 5),), dropped=(1,), chunks=(suffix,))
    )
    assert copied[0].tokens == first[0].tokens
    again = run_step(stepper, Step(step=3, new=(sequence(1, seed=3),), dropped=(2, 77), chunks=(whole,)))
    assert again == first
    assert run_step(stepper, Step(step=4, dropped=(1,), chunks=())) == ()
    with pytest.raises(ValueError, match="source and target in one step"):
        stepper.begin_step(Step(step=5, copies=(BlockCopy(0, 5), BlockCopy(5, 6)), chunks=()))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.booleans()), max_size=8),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_split_covers_every_row_once_in_order(
    sizes: list[tuple[int, int, bool]], max_tokens: int, max_rows: int
) -> None:
    store = SequenceTable(SequenceState, vocab_size=40, max_model_len=128)
    store.add(sequence(1))
    state = store.piece(Chunk(sequence=1, start=0, count=1, blocks=(0,))).state
    # A drawn row is never scored as well, so of `length` rows at most `length` logits are wanted.
    pieces = [
        Piece(number, state, 100, length, sample, min(scored, length - sample))
        for number, (length, scored, sample) in enumerate(sizes)
    ]
    seen: dict[int, list[tuple[int, bool, bool]]] = {}
    for group in split(pieces, max_tokens, max_rows):
        assert group
        assert sum(piece.length for piece in group) <= max_tokens
        assert sum(piece.scored + piece.sample for piece in group) <= max_rows
        for piece in group:
            for row in range(piece.length):
                drawn = piece.sample and row == piece.length - 1
                seen.setdefault(piece.sequence, []).append((piece.start + row, row < piece.scored, drawn))
    assert list(seen) == [piece.sequence for piece in pieces]
    for piece in pieces:
        rows = range(piece.length)
        assert seen[piece.sequence] == [
            (piece.start + row, row < piece.scored, piece.sample and row == piece.length - 1) for row in rows
        ]


def test_join() -> None:
    score = TokenLogprob(token_id=1, logprob=-0.5)
    parts = [
        Row(sequence=1, prompt_logprobs=(score,)),
        Row(sequence=1, error="nonfinite_logits"),
        Row(sequence=1, tokens=(4,), prompt_logprobs=(score,)),
        Row(sequence=2, tokens=(5,)),
    ]
    assert list(join(parts)) == [
        Row(sequence=1, tokens=(4,), prompt_logprobs=(score, score), error="nonfinite_logits"),
        Row(sequence=2, tokens=(5,)),
    ]
    assert list(join([])) == []
