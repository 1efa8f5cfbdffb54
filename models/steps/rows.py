"""The worker's memory of its sequences, and how chunks of them become one ragged batch and one batch of sampler rows.

Python loops over the chunks of a step, never over tokens: a decode row costs a few microseconds. Random numbers depend
on the index of the drawn token in its sequence, so a sequence that was dropped and came back draws the same tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...kernels.sampling.rows import OK, ROW, Int32Array, Int64Array, Sampled, SamplingRows
from .batch import Batch
from .sequence_state import SequenceState, check_record, sampling_row
from .step import ChunkResult, NewSequence, StepChunk, TokenScore

PLACEHOLDER = 0  # stands for the token that a failed row did not give; the sequence is dropped soon


class Piece(NamedTuple):
    """Tokens [start, start + length) of a sequence in one batch, and the logits wanted of them."""

    sequence: int
    state: SequenceState
    start: int
    length: int
    sample: bool  # draw a token after the last row
    scored: int  # so many leading rows report the log probability of the prompt token that follows

    @property
    def lead(self) -> int:
        """Tokens before `start` that are computed once more with it."""
        return self.state.lead(self.start)


def piece_of(state: SequenceState | None, chunk: StepChunk, block_size: int) -> Piece:
    """The whole of a chunk; its blocks are appended to the sequence's table."""
    if state is None:
        raise ValueError(f"sequence {chunk.sequence} is not known here; send its record first")
    if chunk.blocks:
        state.blocks.extend(chunk.blocks)
    start, end, total = chunk.start, chunk.start + chunk.count, state.total
    if start < 0 or chunk.count < 1 or end > total or (chunk.sample and end < total):
        raise ValueError(f"chunk [{start}, {end}) of sequence {chunk.sequence} of {total} tokens")
    if end > state.blocks.size * block_size:
        raise ValueError(f"{state.blocks.size} blocks do not hold {end} tokens of sequence {chunk.sequence}")
    scored = max(0, min(end, state.prompt_tokens - 1) - start) if chunk.prompt_logprobs else 0
    return Piece(chunk.sequence, state, start, chunk.count, chunk.sample, scored)


class RowStore:
    """Sequences by id. Not thread-safe: one step at a time."""

    def __init__(self, *, vocab_size: int, block_size: int, max_model_len: int) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._positions = np.arange(max_model_len, dtype=np.int32)
        self._counting = np.arange(64, dtype=np.int32)  # 0, 1, 2, …: what a step of single tokens begins with
        self._table_width = -(-max_model_len // block_size)
        self._sequences: dict[int, SequenceState] = {}
        self._parameters: npt.NDArray[np.void] = np.zeros(64, ROW)  # by slot
        self._free = list(range(64))

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, record: NewSequence) -> None:
        check_record(record, self._sequences, len(self._positions))
        if not self._free:
            size = len(self._parameters)
            self._parameters = np.concatenate([self._parameters, np.zeros(size, ROW)])
            self._free = list(range(size, 2 * size))
        state = SequenceState(record, self._free[-1], self._vocab_size)
        self._parameters[state.slot] = sampling_row(record.sampling, self._vocab_size)
        self._free.pop()
        self._sequences[record.sequence] = state

    def drop(self, sequence: int) -> None:
        """Forget a sequence. Unknown ids are fine: it may have come and gone before a step was planned for it."""
        state = self._sequences.pop(sequence, None)
        if state is not None:
            self._free.append(state.slot)

    def piece(self, chunk: StepChunk) -> Piece:
        """The whole of a chunk; its blocks are appended to the sequence's table."""
        return piece_of(self._sequences.get(chunk.sequence), chunk, self._block_size)

    def batch(self, pieces: Sequence[Piece]) -> Batch:
        """The ragged batch of these pieces; logit rows in their order, scored ones before the drawn one."""
        if all(piece.length == 1 and piece.sample and not piece.scored for piece in pieces):
            return self._decode_batch(pieces)
        starts = np.zeros(len(pieces) + 1, np.int32)
        np.cumsum([piece.length for piece in pieces], out=starts[1:])
        tokens, positions = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int32)
        tables = np.zeros((len(pieces), self._table_width), np.int32)
        logit_rows: list[Int32Array | list[int]] = []
        first = 0
        for index, (_, state, start, length, sample, scored) in enumerate(pieces):
            blocks = state.blocks.size
            tables[index, :blocks] = state.blocks.array[:blocks]
            end = first + length
            if length == 1:
                tokens[first], positions[first] = state.tokens.array[start], start
            else:
                tokens[first:end] = state.tokens.array[start : start + length]
                positions[first:end] = self._positions[start : start + length]
            if scored:
                logit_rows.append(np.arange(first, first + scored, dtype=np.int32))
            if sample:
                logit_rows.append([end - 1])
            first = end
        rows = np.concatenate(logit_rows).astype(np.int32, copy=False) if logit_rows else np.zeros(0, np.int32)
        return Batch(tokens=tokens, positions=positions, starts=starts, block_tables=tables, logit_rows=rows)

    def _decode_batch(self, pieces: Sequence[Piece]) -> Batch:
        """The same where every piece is one token whose successor is drawn: nearly every step."""
        count = len(pieces)
        if count >= len(self._counting):
            self._counting = np.arange(2 * count, dtype=np.int32)
        tables = np.zeros((count, self._table_width), np.int32)
        for table, piece in zip(tables, pieces, strict=True):
            blocks = piece.state.blocks
            table[: blocks.size] = blocks.array[: blocks.size]
        return Batch(
            tokens=np.array([piece.state.tokens.array[piece.start] for piece in pieces], np.int32),
            positions=np.array([piece.start for piece in pieces], np.int32),
            starts=self._counting[: count + 1],
            block_tables=tables,
            logit_rows=self._counting[:count],
        )

    def sampling_rows(self, pieces: Sequence[Piece]) -> SamplingRows:
        """Sampler rows in the order of the batch's logit rows."""
        if not any(piece.scored for piece in pieces):
            drawn = [piece for piece in pieces if piece.sample]
            rows = self._parameters[[piece.state.slot for piece in drawn]]
            rows["position"] = [piece.start + piece.length for piece in drawn]
            if all(piece.state.plain for piece in drawn):
                return SamplingRows(rows)
            return _with_lists(rows, [piece.state for piece in drawn])
        sizes = [piece.scored + piece.sample for piece in pieces]
        rows = np.repeat(self._parameters[[piece.state.slot for piece in pieces]], sizes)
        states: list[SequenceState | None] = []
        first = 0
        for (_, state, start, length, sample, scored), size in zip(pieces, sizes, strict=True):
            rows["target"][first : first + scored] = state.tokens.array[start + 1 : start + 1 + scored]
            rows["top"][first : first + scored] = state.prompt_top
            rows["position"][first + scored : first + size] = start + length
            states += [None] * scored + [state] * sample
            first += size
        return _with_lists(rows, states)

    def collect(self, pieces: Sequence[Piece], rows: SamplingRows, sampled: Sampled) -> list[ChunkResult]:
        """Append what was drawn to the sequences; one result per piece."""
        results: list[ChunkResult] = []
        tokens, status, tops = sampled.tokens.tolist(), sampled.status.tolist(), rows.rows["top"].tolist()
        first = 0
        for sequence, state, _, _, sample, scored in pieces:
            drawn, end = first + scored, first + scored + sample
            if sample and not scored and tops[drawn] < 0 and status[drawn] == OK:  # nearly always
                state.append(tokens[drawn])
                results.append(ChunkResult(sequence=sequence, tokens=(tokens[drawn],)))
            elif any(code != OK for code in status[first:end]):
                results.append(ChunkResult(sequence=sequence, error="nonfinite_logits"))
                if sample:  # the next step may be on its way already and counts on a token here
                    state.append(PLACEHOLDER)
            else:
                prompt = tuple(_score(sampled, row, tops[row]) for row in range(first, drawn))
                if sample:
                    state.append(tokens[drawn])
                    scores = (_score(sampled, drawn, tops[drawn]),) if tops[drawn] >= 0 else ()
                    results.append(
                        ChunkResult(sequence=sequence, tokens=(tokens[drawn],), logprobs=scores, prompt_logprobs=prompt)
                    )
                else:
                    results.append(ChunkResult(sequence=sequence, prompt_logprobs=prompt))
            first = end
        return results


def _score(sampled: Sampled, row: int, top: int) -> TokenScore:
    ids, values = sampled.top_tokens[row, :top].tolist(), sampled.top_logprobs[row, :top].tolist()
    return TokenScore(int(sampled.tokens[row]), float(sampled.logprobs[row]), tuple(zip(ids, values, strict=True)))


def _with_lists(rows: npt.NDArray[np.void], states: Sequence[SequenceState | None]) -> SamplingRows:
    """Add the sparse lists of those rows that have any; scored rows (None) have none."""
    seen = [None if state is None else state.seen for state in states]
    bias = [state if state is not None and state.bias_tokens.size else None for state in states]
    bans = [state if state is not None and state.bans() else None for state in states]
    lists = SamplingRows(rows)
    if any(seen):
        lists.seen_starts = _starts([0 if item is None else item.tokens.size for item in seen])
        lists.seen_tokens = np.concatenate([item.tokens.view() for item in seen if item is not None])
        lists.seen_counts = np.concatenate([item.counts.view() for item in seen if item is not None])
    if any(bias):
        lists.bias_starts = _starts([0 if item is None else item.bias_tokens.size for item in bias])
        lists.bias_tokens = np.concatenate([item.bias_tokens for item in bias if item is not None])
        lists.bias_values = np.concatenate([item.bias_values for item in bias if item is not None])
    if any(bans):
        lists.banned_starts = _starts([0 if item is None else item.banned.size for item in bans])
        lists.banned_tokens = np.concatenate([item.banned for item in bans if item is not None])
    return lists


def _starts(sizes: list[int]) -> Int64Array:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts
