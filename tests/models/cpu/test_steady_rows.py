"""Rows that are moved on from step to step give what rows made anew for every step give."""

import queue
import re
from collections.abc import Iterator
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from triolet.kernels.sampling.rows import Sampled
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights, LayerWeights, NormWeights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch, SteadyRows, make_rows
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.guides.grammars import GrammarStore
from triolet.models.steps.sequences import SequenceState, SequenceTable
from triolet.models.steps.steps import collect
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk, GrammarFailed, GrammarReady, PrepareGrammar, Row, SequenceRecord, Step

VOCAB, BLOCK, LENGTH = 40, 64, 192
SPEC = ModelSpec(
    family="llama", vocab_size=VOCAB, hidden_size=16, layers=alike(1), num_heads=2, num_kv_heads=1, head_dim=8,
    mlp_size=24, norm_eps=1e-5, max_position=LENGTH, tied_embeddings=True,
)  # fmt: skip


def small_weights() -> DecoderWeights:
    rng = np.random.default_rng(1)

    def matrix(*shape: int) -> npt.NDArray[np.float32]:
        return (rng.normal(size=shape) * 0.5).astype(np.float32)

    ones = np.ones(16, np.float32)
    layer = LayerWeights(
        q=matrix(16, 16), k=matrix(8, 16), v=matrix(8, 16), o=matrix(16, 16), gate=matrix(24, 16), up=matrix(24, 16),
        down=matrix(16, 24), input_norm=NormWeights(ones), mlp_norm=NormWeights(ones),
    )  # fmt: skip
    return DecoderWeights(embedding=matrix(VOCAB, 16), layers=(layer,), final_norm=NormWeights(ones), lm_head=None)


@pytest.fixture(scope="module")
def runner() -> Iterator[CpuRunner]:
    sizes = CpuSizes(
        weight_format="float32", num_blocks=16, max_step_tokens=192, max_logit_rows=16, max_model_len=LENGTH
    )
    runner = CpuRunner(SPEC, small_weights(), sizes)
    yield runner
    runner.close()


class Letters:
    """A tokenizer of single characters: a token's id is its code."""

    eos_token_id, bos_token_id, special_token_ids = 0, None, (0,)
    tokens = tuple(bytes([code]) for code in range(VOCAB))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def grammars(*, jump_ahead: bool) -> GrammarStore:
    """Number 1 is a text without an end in which one sign brings three others."""
    tokenizer = LLTokenizer(TokenizerWrapper(Letters()), n_vocab=VOCAB)
    store = GrammarStore(tokenizer, (0,), VOCAB, jump_ahead=jump_ahead)
    answers: queue.SimpleQueue[GrammarReady | GrammarFailed] = queue.SimpleQueue()
    order = PrepareGrammar(grammar=1, text=LLMatcher.grammar_from_regex("([ !\"#]|[$]%&')*[(]"))
    store.prepare(order, answers.put)
    assert answers.get() == GrammarReady(grammar=1)
    return store


class Life:
    """A stepper and what the scheduler would know of its sequences; every sequence has three blocks of its own."""

    def __init__(self, runner: CpuRunner, grammars: GrammarStore | None = None) -> None:
        self.stepper = CpuStepper(runner, grammars)
        self.totals: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self.said: list[tuple[Row, ...]] = []

    def start(self, number: int, length: int, sampling: Sampling, grammar: int = 0) -> None:
        tokens = tuple((7 * number + 3 * place) % VOCAB for place in range(length))
        record = SequenceRecord(
            sequence=number,
            tokens=tokens,
            prompt_tokens=length,
            sampling=sampling,
            stop_token_ids=(),
            grammar=grammar,
        )
        self.totals[number] = length
        blocks = tuple(3 * number + block for block in range(-(-length // BLOCK)))
        self._run((Chunk(sequence=number, start=0, count=length, blocks=blocks, sample=True),), new=(record,))

    def step(self, *sequences: int, dropped: tuple[int, ...] = ()) -> None:
        """One more token each, behind those that were forced."""
        self._run(tuple(map(self._next, sequences)), dropped=dropped)

    def _next(self, number: int) -> Chunk:
        start, end = self.computed[number], self.totals[number]
        blocks = tuple(3 * number + block for block in range(-(-start // BLOCK), -(-end // BLOCK)))
        return Chunk(sequence=number, start=start, count=end - start, blocks=blocks, sample=True)

    def _run(
        self, chunks: tuple[Chunk, ...], new: tuple[SequenceRecord, ...] = (), dropped: tuple[int, ...] = ()
    ) -> None:
        step = Step(step=1, chunks=chunks, new=new, dropped=dropped)
        self.said.append(self.stepper.begin_step(step).wait().rows)
        for chunk, row in zip(chunks, self.said[-1], strict=True):
            self.totals[chunk.sequence] += max(len(row.tokens), 1)
            self.computed[chunk.sequence] = chunk.start + chunk.count


def live(runner: CpuRunner, *, temperature: float = 0.0) -> list[tuple[Row, ...]]:
    """Sequences come, go on together, leave, and are met again: also across the ends of blocks."""
    life = Life(runner)
    for number, length in enumerate((60, 61, 3)):
        life.start(number, length, Sampling(temperature=temperature, seed=number))
    for _ in range(8):
        life.step(0, 1, 2)
    life.start(3, 5, Sampling(temperature=temperature, frequency_penalty=0.5))  # never steady
    for _ in range(3):
        life.step(0, 1, 2, 3)
    for _ in range(3):
        life.step(2, 0)  # another order, and two that rest
    life.step(0, 1, 2, dropped=(3,))
    for _ in range(64):
        life.step(0, 1, 2)
    return life.said


def guided_life(runner: CpuRunner, *, jump_ahead: bool, temperature: float = 1.0) -> list[tuple[Row, ...]]:
    """Two sequences with a grammar and one without, together and apart."""
    life = Life(runner, grammars(jump_ahead=jump_ahead))
    for number in range(3):
        life.start(number, 20, Sampling(temperature=temperature, seed=number), grammar=int(number < 2))
    for _ in range(16):
        life.step(0, 1, 2)
    for _ in range(4):
        life.step(1, 0)
    for _ in range(16):
        life.step(0, 1, 2)
    return life.said


@pytest.mark.parametrize("jump_ahead", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_guided_sequences_are_the_same(
    runner: CpuRunner, monkeypatch: pytest.MonkeyPatch, jump_ahead: bool, temperature: float
) -> None:
    moved = guided_life(runner, jump_ahead=jump_ahead, temperature=temperature)
    text = bytes(token for step in moved for row in step if row.sequence == 0 for token in row.tokens)
    assert re.fullmatch(rb"([ !\"#]|[$]%&')*(\([\0-\x28]*|[$]%?&?)?", text)
    anew(monkeypatch)
    assert guided_life(runner, jump_ahead=jump_ahead, temperature=temperature) == moved


def test_guided_steps_are_moved_on(runner: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jumps all of them."""
    moves = moved_on(monkeypatch)
    guided_life(runner, jump_ahead=False)
    assert sum(moves) >= 30


def moved_on(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """From now on: of each step, whether its rows are those of the last one."""
    moves: list[bool] = []
    advance = SteadyRows.advance

    def counted(rows: SteadyRows, chunks: tuple[Chunk, ...]) -> bool:
        moves.append(advance(rows, chunks))
        return moves[-1]

    monkeypatch.setattr(SteadyRows, "advance", counted)
    return moves


def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*step: object) -> None: ...

    monkeypatch.setattr(SteadyRows, "after", nothing)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_tokens_are_the_same(runner: CpuRunner, monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    moved = live(runner, temperature=temperature)
    assert len({result.tokens for step in moved for result in step}) > 5
    anew(monkeypatch)
    assert live(runner, temperature=temperature) == moved


def test_most_steps_are_moved_on(runner: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = moved_on(monkeypatch)
    live(runner)
    assert sum(moves) >= 70


@pytest.mark.parametrize("fault", ["position", "token", "untold", "table"])
def test_rows_that_are_moved_on_wrongly_are_noticed(
    runner: CpuRunner, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    advance, settle = SteadyRows.advance, SteadyRows.settle

    def wrong(rows: SteadyRows, chunks: tuple[Chunk, ...]) -> bool:
        moved = advance(rows, chunks)
        if fault == "position":
            rows.batch.positions[0] -= moved
        elif fault == "token":
            rows.batch.tokens[0] ^= moved
        elif fault == "table" and any(chunk.blocks for chunk in chunks):
            rows.batch.block_tables[:, 1] = 15
        return moved

    with monkeypatch.context() as patch:
        patch.setattr(SteadyRows, "advance", wrong)
        if fault == "untold":

            def untold(rows: SteadyRows) -> None:
                if len(rows.pieces) < 3:
                    settle(rows)

            patch.setattr(SteadyRows, "settle", untold)
        try:
            wrong_life = live(runner)
        except ValueError:  # what the sequences do not know, their chunks do not fit
            return
    anew(monkeypatch)
    assert live(runner) != wrong_life


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 130), min_size=1, max_size=5), st.integers(1, 70), st.randoms(use_true_random=False))
def test_moved_on_or_made_anew_the_rows_are_equal(lengths: list[int], steps: int, random: Random) -> None:
    """Number by number, in every step; and so are the sequences when the rows end."""
    tables = [SequenceTable(SequenceState, vocab_size=VOCAB, max_model_len=256) for _ in range(2)]
    for number, length in enumerate(lengths):
        tokens, sampling = tuple(range(length % VOCAB + 1)) * length, Sampling(temperature=1.0, seed=number)
        record = SequenceRecord(
            sequence=number, tokens=tokens[:length], prompt_tokens=length, sampling=sampling, stop_token_ids=()
        )
        blocks = tuple(range(4 * number, 4 * number + -(-length // BLOCK)))
        chunk = Chunk(sequence=number, start=0, count=length, blocks=blocks, sample=True)
        for table in tables:
            table.add(record)
            collect([table.piece(chunk)], sampled_of([number]))
    steady: SteadyRows | None = None
    for step in range(steps):
        chunks = list[Chunk]()
        for number, length in enumerate(lengths):
            start = length + step
            blocks = (4 * number + start // BLOCK,) if start % BLOCK == 0 else ()
            chunks.append(Chunk(sequence=number, start=start, count=1, blocks=blocks, sample=True))
        sampled = sampled_of([random.randrange(VOCAB) for _ in lengths])
        pieces = [tables[1].piece(chunk) for chunk in chunks]
        batch, rows = make_rows(pieces, 4)
        anew = collect(pieces, sampled)
        if steady is None:
            pieces = [tables[0].piece(chunk) for chunk in chunks]
            steady = SteadyRows.after(pieces, *make_rows(pieces, 4), sampled)
            assert steady is not None
            collect(pieces, sampled)
            continue
        assert steady.advance(chunks)
        for name in batch.__struct_fields__:
            np.testing.assert_array_equal(getattr(steady.batch, name), getattr(batch, name))
        assert steady.rows.rows.tolist() == rows.rows.tolist()
        assert steady.collect(sampled) == anew
    assert steady is not None
    steady.settle()
    states = [[table.piece(Chunk(sequence=n, start=0, count=1)).state for n in range(len(lengths))] for table in tables]
    found, expected = ([state.tokens.view().tolist() for state in of_table] for of_table in states)
    assert found == expected


def sampled_of(tokens: list[int]) -> Sampled:
    count = len(tokens)
    return Sampled(
        tokens=np.array(tokens, np.int32),
        status=np.zeros(count, np.uint8),
        logprobs=np.zeros(count, np.float32),
        top_tokens=np.zeros((count, 0), np.int32),
        ranks=np.zeros(count, np.int32),
        top_logprobs=np.zeros((count, 0), np.float32),
    )


class Poisoned:
    """A runner one of whose steps gives a row that is no number."""

    def __init__(self, runner: CpuRunner, step: int) -> None:
        self.spec, self.sizes, self.copy_blocks = runner.spec, runner.sizes, runner.copy_blocks
        self._runner = runner
        self._steps = step

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits = self._runner.forward(batch)
        self._steps -= 1
        if self._steps == 0:
            logits[1, 5] = np.nan
        return logits

    def close(self) -> None:
        """The runner is another's."""


@pytest.mark.parametrize("step", [8, 9])
def test_a_row_that_gives_no_token_fails_alone(runner: CpuRunner, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    moved = live(Poisoned(runner, step))  # type: ignore[arg-type]  # what a stepper asks of a runner
    assert [result.error for result in moved[step - 1]] == ["", "nonfinite_logits", ""]
    anew(monkeypatch)
    assert live(Poisoned(runner, step)) == moved  # type: ignore[arg-type]  # as above
