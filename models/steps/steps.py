"""A step on any device: cuts its pieces into passes, lists its block copies, and assembles its answer."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import structs

from ...kernels.sampling.rows import NONE_LEFT, NOT_FINITE, OK, Int32Array, Sampled
from ...protocol.events import TokenLogprob, TopLogprob
from ...protocol.steps import Chunk, Row, Step
from .sequences import Piece, SequenceState, State

PLACEHOLDER = 0  # the token of a failed row; the sequence is dropped soon
_ERRORS = {OK: "", NOT_FINITE: "nonfinite_logits", NONE_LEFT: "no_token_left"}  # codes of protocol.errors


def block_copies(step: Step) -> tuple[Int32Array, Int32Array]:
    """Sources and targets of a step's block copies. They may run in any order."""
    sources, targets = [copy.source for copy in step.copies], [copy.target for copy in step.copies]
    if not set(sources).isdisjoint(targets):
        raise ValueError("copies: a block is source and target in one step; send the second copy with the next one")
    return np.array(sources, np.int32), np.array(targets, np.int32)


def split(
    pieces: Iterable[Piece[State]], max_tokens: int, max_rows: int, max_pieces: int | None = None
) -> Iterator[list[Piece[State]]]:
    """Cut pieces into groups that fit one forward pass; almost always there is one group.

    Log probabilities of a long prompt need more: they want more rows of logits than there is room for.
    """
    group: list[Piece[State]] = []
    tokens = rows = 0
    for piece in pieces:
        rest: Piece[State] | None = piece
        while rest is not None:
            size, wanted, full = rest.lead + rest.length, rest.scored + rest.sample, len(group) == max_pieces
            if tokens + size <= max_tokens and rows + wanted <= max_rows and not full:
                group.append(rest)
                tokens, rows, rest = tokens + size, rows + wanted, None
                continue
            # Every token of the head takes at most one row, so `room` tokens always fit.
            room = min(max_tokens - tokens - rest.lead, max_rows - rows, rest.length - 1)
            if room > 0 and not full:
                head = rest._replace(length=room, sample=False, scored=min(room, rest.scored))
                group.append(head)
                rest = rest._replace(
                    start=rest.start + room, length=rest.length - room, scored=rest.scored - head.scored
                )
            yield group
            group, tokens, rows = [], 0, 0
    if group:
        yield group


def collect(pieces: Sequence[Piece[State]], sampled: Sampled) -> list[Row]:
    """The result of each piece; the sequences learn their tokens. `sampled` begins with the rows of these pieces."""
    count = sum([piece.scored + piece.sample for piece in pieces])
    tokens, status = sampled.tokens[:count].tolist(), sampled.status[:count].tolist()
    sound, first = not any(status), 0
    results: list[Row] = []
    for sequence, state, start, length, sample, scored in pieces:
        last = first + scored
        problem = OK if sound else next((code for code in status[first : last + sample] if code != OK), OK)
        if sample:  # even if it failed: the next step may already run and expects a token here
            state.learn_token(start + length, PLACEHOLDER if problem else tokens[last])
        forced: tuple[int, ...] = ()
        error = _error(state, problem)
        if sample and not problem and (guide := state.guide) is not None:
            forced = guide.take(tokens[last])
            error = learn_guided(state, forced)
        if error:
            results.append(Row(sequence=sequence, error=error))
        elif scored or (sample and state.top >= 0):
            results.append(
                Row(
                    sequence=sequence,
                    tokens=(tokens[last], *forced) if sample else (),
                    logprobs=(_logprob(sampled, last, state.top),) if sample and state.top >= 0 else (),
                    prompt_logprobs=tuple(_logprob(sampled, row, state.prompt_top) for row in range(first, last)),
                )
            )
        else:
            results.append(Row(sequence=sequence, tokens=(tokens[last], *forced) if sample else ()))
        first = last + sample
    return results


def learn_guided(state: SequenceState, forced: tuple[int, ...]) -> str:
    """A sequence's guide has taken its token: it learns those forced behind it. Returns the code of an error, or ""."""
    guide = state.guide
    assert guide is not None, "only guided sequences have forced tokens"
    state.learn_forced(forced)
    # Not beside forced tokens: a step planned before them needs the guide, and is the last such step.
    if guide.over and not forced:
        state.guide = None
    return "grammar_failed" if guide.failed else ""


def _error(state: SequenceState, problem: int) -> str:
    """The error of a row by the sampler's status."""
    masked = state.guide is not None and state.guide.masked
    return "grammar_failed" if problem == NONE_LEFT and masked else _ERRORS[problem]


def with_computed(rows: Iterable[Row], pieces: Iterable[Piece[State]], chunks: Iterable[Chunk]) -> Iterator[Row]:
    """The rows of a step's chunks, with the number of tokens computed where it is not what the chunk says."""
    for row, piece, chunk in zip(rows, pieces, chunks, strict=True):
        same = piece.length == chunk.count and piece.sample == chunk.sample
        yield row if same else structs.replace(row, computed=piece.length)


def _logprob(sampled: Sampled, row: int, top: int) -> TokenLogprob:
    ids, values = sampled.top_tokens[row, :top].tolist(), sampled.top_logprobs[row, :top].tolist()
    return TokenLogprob(
        token_id=int(sampled.tokens[row]),
        logprob=float(sampled.logprobs[row]),
        rank=int(sampled.ranks[row]),
        top=tuple(map(TopLogprob, ids, values)),
    )


def join(results: Iterable[Row]) -> Iterator[Row]:
    """Merge the results of one chunk's pieces, which are adjacent."""
    last: Row | None = None
    for result in results:
        if last is not None and last.sequence == result.sequence:
            last = Row(
                sequence=last.sequence,
                tokens=last.tokens + result.tokens,
                logprobs=last.logprobs + result.logprobs,
                prompt_logprobs=last.prompt_logprobs + result.prompt_logprobs,
                error=last.error or result.error,
            )
            continue
        if last is not None:
            yield last
        last = result
    if last is not None:
        yield last
