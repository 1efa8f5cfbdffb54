"""The CPU's rows: chunks become batches and sampler rows, answers become tokens."""

from typing import Any

import numpy as np
import pytest

from triolet.kernels.sampling.launch import CpuSampler
from triolet.kernels.sampling.rows import MAX_TOP, SamplingRows, mask_words
from triolet.models.cpu.rows import Batch, make_rows
from triolet.models.guides.guide import Guide
from triolet.models.steps.sequences import GrowingInts, Piece, SeenTokens, SequenceState, SequenceTable
from triolet.models.steps.steps import PLACEHOLDER, collect
from triolet.protocol.requests import Thinking
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk, Row, SequenceRecord

VOCAB, LENGTH = 50, 192
Pieces = list[Piece[SequenceState]]


def make_store() -> SequenceTable[SequenceState]:
    return SequenceTable(SequenceState, vocab_size=VOCAB, max_model_len=LENGTH)


def batch_of(pieces: Pieces) -> Batch:
    return make_rows(pieces, LENGTH // 64)[0]


def sampling_rows_of(pieces: Pieces) -> SamplingRows:
    return make_rows(pieces, LENGTH // 64)[1]


def record(sequence: int, tokens: tuple[int, ...], prompt: int | None = None, **sampling: Any) -> SequenceRecord:
    return SequenceRecord(
        sequence=sequence,
        tokens=tokens,
        prompt_tokens=len(tokens) if prompt is None else prompt,
        sampling=Sampling(**sampling),
        stop_token_ids=(7, 8),
    )


def answer(pieces: Pieces, logits: np.ndarray) -> tuple[SamplingRows, list[Row]]:
    rows = sampling_rows_of(pieces)
    sampled = CpuSampler(VOCAB).sample(logits.astype(np.float32), rows)
    return rows, collect(pieces, sampled)


def one_hot(*tokens: int) -> np.ndarray:
    logits = np.zeros((len(tokens), VOCAB), np.float32)
    logits[np.arange(len(tokens)), tokens] = 9
    return logits


def test_a_ragged_batch() -> None:
    store = make_store()
    store.add(record(1, (*range(40), *range(24), 14, 15)))
    store.add(record(2, (20, 21)))
    store.piece(Chunk(sequence=1, start=0, count=64, blocks=(5,)))
    pieces = [
        store.piece(Chunk(sequence=2, start=1, count=1, blocks=(9,), sample=True)),
        store.piece(Chunk(sequence=1, start=64, count=2, blocks=(3,), sample=True)),
    ]
    batch = batch_of(pieces)
    assert batch.tokens.tolist() == [21, 14, 15]
    assert batch.positions.tolist() == [1, 64, 65]
    assert batch.starts.tolist() == [0, 1, 3]
    assert batch.block_tables[:, :2].tolist() == [[9, 0], [5, 3]]
    assert batch.logit_rows.tolist() == [0, 2]
    for array in (batch.tokens, batch.positions, batch.starts, batch.block_tables, batch.logit_rows):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous


def test_decoding_appends_and_moves_the_random_position() -> None:
    store = make_store()
    store.add(record(1, (10, 11), temperature=0.0, seed=2**64 - 1))
    for step in range(3):
        chunk = Chunk(sequence=1, start=0 if step == 0 else 1 + step, count=2 if step == 0 else 1,
                      blocks=(step,) if step in (0, 2) else (), sample=True)  # fmt: skip
        pieces = [store.piece(chunk)]
        assert batch_of(pieces).tokens.tolist() == ([10, 11] if step == 0 else [30 + step - 1])
        rows, results = answer(pieces, one_hot(30 + step))
        assert rows.rows["position"].tolist() == [2 + step]
        assert rows.rows["seed"].tolist() == [2**64 - 1]
        assert results == [Row(sequence=1, tokens=(30 + step,))]


def test_a_sequence_that_came_back_draws_the_same() -> None:
    """After a preemption the record holds what was generated; the next draw has the same position and penalties."""
    logits = np.random.default_rng(0).normal(size=(1, VOCAB))
    options: dict[str, Any] = {"seed": 5, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "min_tokens": 4}
    store = make_store()
    store.add(record(1, (10, 11, 10), **options))
    pieces = [store.piece(Chunk(sequence=1, start=0, count=3, blocks=(0,), sample=True))]
    first = answer(pieces, logits)[1][0].tokens
    pieces = [store.piece(Chunk(sequence=1, start=3, count=1, sample=True))]
    expected, results = answer(pieces, logits)
    other = make_store()
    other.add(record(9, (10, 11, 10, *first), prompt=3, **options))
    pieces = [other.piece(Chunk(sequence=9, start=0, count=4, blocks=(6,), sample=True))]
    rows, again = answer(pieces, logits)
    assert again[0].tokens == results[0].tokens
    assert rows.rows.tolist() == expected.rows.tolist()
    # The order of seen tokens may differ (they are a set), their counts may not.
    assert sorted(zip(rows.seen_tokens, rows.seen_counts, strict=True)) == sorted(
        zip(expected.seen_tokens, expected.seen_counts, strict=True)
    )
    assert rows.banned_tokens.tolist() == [7, 8]


def test_stop_tokens_are_banned_until_min_tokens() -> None:
    store = make_store()
    store.add(record(1, (10,), temperature=0.0, min_tokens=1))
    pieces = [store.piece(Chunk(sequence=1, start=0, count=1, blocks=(0,), sample=True))]
    logits = one_hot(7)
    logits[0, 30] = 5
    assert answer(pieces, logits)[1][0].tokens == (30,)
    pieces = [store.piece(Chunk(sequence=1, start=1, count=1, sample=True))]
    assert answer(pieces, logits)[1][0].tokens == (7,)


def test_the_last_token_of_a_bad_word_is_banned_behind_the_others() -> None:
    """Those before it must be output: what the prompt ends with does not begin a word."""
    store = make_store()
    store.add(record(1, (20, 21), temperature=0.0, bad_words=((25,), (20, 21, 30), (21, 30))))
    logits = one_hot(25)
    logits[0, 30], logits[0, 21] = 5, 4
    pieces = [store.piece(Chunk(sequence=1, start=0, count=2, blocks=(0,), sample=True))]
    drawn = [answer(pieces, logits)[1][0].tokens]
    for start in range(2, 6):
        pieces = [store.piece(Chunk(sequence=1, start=start, count=1, sample=True))]
        drawn.append(answer(pieces, one_hot(21) if start == 2 else logits)[1][0].tokens)
    assert drawn == [(30,), (21,), (21,), (21,), (21,)]


def test_only_allowed_tokens_are_drawn() -> None:
    store = make_store()
    mask = np.zeros(mask_words(VOCAB), np.uint32)
    mask[12 // 32] |= np.uint32(1 << 12 % 32)
    mask[40 // 32] |= np.uint32(1 << 40 % 32)
    store.add(record(1, (10,), allowed_tokens=mask.tobytes(), logprobs=1))
    store.add(record(2, (10,), temperature=0.0))
    pieces = [store.piece(Chunk(sequence=n, start=0, count=1, blocks=(n,), sample=True)) for n in (1, 2)]
    rows, (masked, free) = answer(pieces, np.concatenate([one_hot(30), one_hot(30)]))
    assert rows.mask_lines.tolist() == [0, -1]
    assert masked.tokens[0] in (12, 40)
    assert masked.logprobs[0].top[0].token_id == 30  # log probabilities are of the raw logits
    assert free.tokens == (30,)
    with pytest.raises(ValueError, match="allowed_tokens of sequence 3"):
        store.add(record(3, (10,), allowed_tokens=bytes(4 * len(mask) + 4)))


def test_prompt_logprobs_follow_the_prompt() -> None:
    store = make_store()
    store.add(record(1, (1, 2, 3, 4), temperature=0.0, prompt_logprobs=1, logprobs=0, min_tokens=2, presence_penalty=1))
    pieces = [store.piece(Chunk(sequence=1, start=0, count=4, blocks=(0,), sample=True, prompt_logprobs=True))]
    batch = batch_of(pieces)
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]
    rows, (result,) = answer(pieces, one_hot(2, 9, 4, 7))
    assert rows.rows["target"].tolist() == [2, 3, 4, -1]
    assert rows.banned_starts.tolist() == [0, 0, 0, 0, 2]
    assert [score.token_id for score in result.prompt_logprobs] == [2, 3, 4]
    assert [score.top[0].token_id for score in result.prompt_logprobs] == [2, 9, 4]
    exact = 9 - np.log(np.exp(9.0) + VOCAB - 1)
    found = [score.logprob for score in result.prompt_logprobs[:2]]
    assert found == pytest.approx([exact, exact - 9], abs=1e-6)
    assert result.tokens != (7,)
    assert result.logprobs[0].top == ()


def test_a_broken_row_fails_alone_and_the_next_step_still_runs() -> None:
    store = make_store()
    for sequence in (1, 2):
        store.add(record(sequence, (1, 2), temperature=0.0))
    chunks = [Chunk(sequence=sequence, start=0, count=2, blocks=(sequence,), sample=True) for sequence in (1, 2)]
    pieces = [store.piece(chunk) for chunk in chunks]
    logits = one_hot(5, 6)
    logits[0, 3] = np.nan
    _, results = answer(pieces, logits)
    assert results == [Row(sequence=1, error="nonfinite_logits"), Row(sequence=2, tokens=(6,))]
    pieces = [store.piece(Chunk(sequence=sequence, start=2, count=1, sample=True)) for sequence in (1, 2)]
    assert batch_of(pieces).tokens.tolist() == [PLACEHOLDER, 6]


def test_many_sequences_come_and_go() -> None:
    store = make_store()
    for sequence in range(200):
        store.add(record(sequence, (1,), seed=sequence))
    for sequence in range(0, 200, 2):
        store.drop(sequence)
    store.drop(12345)
    for sequence in range(200, 300):
        store.add(record(sequence, (1,), seed=sequence))
    assert len(store) == 200
    ids = [*range(1, 200, 2), *range(200, 300)]
    pieces = [store.piece(Chunk(sequence=i, start=0, count=1, blocks=(0,), sample=True)) for i in ids]
    assert sampling_rows_of(pieces).rows["seed"].tolist() == ids


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(1, (1,)), "already here"),
        (record(2, (1, VOCAB)), "tokens of sequence 2"),
        (record(2, (-1,)), "tokens of sequence 2"),
        (record(2, (1,), logit_bias=((VOCAB, 1.0),)), "logit_bias of sequence 2"),
        (record(2, (1,) * (LENGTH + 1)), f"expected 1 to {LENGTH} tokens"),
        (record(2, (1,), prompt=0), "prompt first"),
    ],
)
def test_bad_records_are_refused(bad: SequenceRecord, message: str) -> None:
    store = make_store()
    store.add(record(1, (1,)))
    with pytest.raises(ValueError, match=message):
        store.add(bad)
    assert len(store) == 1


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk(sequence=9, start=0, count=1), "not known"),
        (Chunk(sequence=1, start=0, count=4, blocks=(0,)), "of 3 tokens"),
        (Chunk(sequence=1, start=0, count=2, blocks=(0,), sample=True), "of 3 tokens"),
        (Chunk(sequence=1, start=-1, count=2, blocks=(0,)), "of 3 tokens"),
        (Chunk(sequence=1, start=0, count=3), "0 blocks do not hold 3 tokens"),
        (Chunk(sequence=2, start=0, count=65, blocks=(0,)), "1 blocks do not hold 65 tokens"),
    ],
)
def test_bad_chunks_are_refused(chunk: Chunk, message: str) -> None:
    store = make_store()
    store.add(record(1, (1, 2, 3)))
    store.add(record(2, (1,) * 65))
    with pytest.raises(ValueError, match=message):
        store.piece(chunk)


def test_top_is_bounded() -> None:
    store = make_store()
    store.add(record(1, (1,), logprobs=500))
    piece = store.piece(Chunk(sequence=1, start=0, count=1, blocks=(0,), sample=True))
    assert sampling_rows_of([piece]).rows["top"].tolist() == [MAX_TOP]


def test_growing_ints() -> None:
    ints = GrowingInts([1, 2])
    for value in range(500):
        ints.append(value)
    ints.extend(range(1000))
    assert ints.view().tolist() == [1, 2, *range(500), *range(1000)]


def test_seen_tokens_count_the_output() -> None:
    seen = SeenTokens(np.array([5, 3, 5, 9, 3], np.int32), prompt_tokens=3)
    for token in (4, 3):
        seen.add_generated(token)
    counts = dict(zip(seen.tokens.view().tolist(), seen.counts.view().tolist(), strict=True))
    assert counts == {3: 2, 5: 0, 9: 1, 4: 1}


def thoughts(*answer: int) -> Guide:
    """A guide of thoughts alone, with a budget of two tokens."""
    thinking = Thinking(begin=(), end=(3, 4), open=True)
    return Guide(None, thinking, 2, eos=(7,), vocab_size=VOCAB, jumps=True, answer=answer)


def test_allowed_tokens_hold_beside_a_guided_prompt() -> None:
    """Nobody fills the mask of a guided sequence that draws nothing, so masks are not added afterwards."""
    only = np.zeros(mask_words(VOCAB), np.uint32)
    only[0] = 1 << 12
    store = make_store()
    store.add(record(1, (10, 11), allowed_tokens=only.tobytes()))
    store.add(record(2, (20, 21, 22)))
    pieces = [
        store.piece(Chunk(sequence=1, start=0, count=2, blocks=(0,), sample=True)),
        store.piece(Chunk(sequence=2, start=0, count=2, blocks=(1,))),
    ]
    pieces[1].state.guide = thoughts()
    assert answer(pieces, one_hot(30))[1][0].tokens == (12,)


def test_a_guide_goes_when_its_thoughts_are_over() -> None:
    """Not beside forced tokens, which a step under way may have to catch up with."""
    store = make_store()
    store.add(record(1, (10, 11), temperature=0.0))
    pieces = [store.piece(Chunk(sequence=1, start=0, count=2, blocks=(0,), sample=True))]
    state = pieces[0].state
    state.guide = thoughts(20)
    assert answer(pieces, one_hot(30))[1] == [Row(sequence=1, tokens=(30, 3, 4))]
    assert state.guide is not None
    planned_before = store.piece(Chunk(sequence=1, start=2, count=1, sample=True))
    assert (planned_before.length, planned_before.sample) == (1, False)  # the step has no room for the forced ones
    pieces = [store.piece(Chunk(sequence=1, start=3, count=2, sample=True))]
    assert answer(pieces, one_hot(31))[1] == [Row(sequence=1, tokens=(31,))]
    assert state.plain
