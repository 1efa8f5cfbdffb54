"""What came back from a pass, read: drawn tokens become known to their sequences, and the engine gets its results."""

from __future__ import annotations

from collections.abc import Sequence

from ...kernels.sampling.rows import OK
from ..steps.rows import PLACEHOLDER, Piece
from ..steps.step import ChunkResult, TokenScore
from .packet import Exchange
from .sequences import states_of


def collect(exchange: Exchange, pieces: Sequence[Piece]) -> list[ChunkResult]:
    """One result per piece. The exchange holds the answer of the pass over these pieces."""
    results: list[ChunkResult] = []
    rows = sum([piece.scored + piece.sample for piece in pieces])
    tokens, broken = exchange.drawn[:rows].tolist(), exchange.status[:rows] != OK
    sound, row = not broken.any(), 0
    for (sequence, _, start, length, sample, scored), state in zip(pieces, states_of(pieces), strict=True):
        last = row + scored
        failed = not sound and bool(broken[row : last + sample].any())
        if sample:
            state.drawn[start + length - state.known] = PLACEHOLDER if failed else tokens[last]
        if failed:
            results.append(ChunkResult(sequence=sequence, error="nonfinite_logits"))
        elif scored or (sample and state.top >= 0):
            results.append(
                ChunkResult(
                    sequence=sequence,
                    tokens=(tokens[last],) if sample else (),
                    logprobs=(_score(exchange, last, state.top),) if sample and state.top >= 0 else (),
                    prompt_logprobs=tuple(_score(exchange, place, state.prompt_top) for place in range(row, last)),
                )
            )
        else:
            results.append(ChunkResult(sequence=sequence, tokens=(tokens[last],) if sample else ()))
        row = last + sample
    return results


def _score(exchange: Exchange, row: int, top: int) -> TokenScore:
    ids, values = exchange.top_tokens[row, :top].tolist(), exchange.top_logprobs[row, :top].tolist()
    return TokenScore(int(exchange.drawn[row]), float(exchange.logprobs[row]), tuple(zip(ids, values, strict=True)))
