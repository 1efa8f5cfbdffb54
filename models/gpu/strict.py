"""Strict determinism on a GPU: every token of a sequence is always computed by the same kernels, whatever came between.

Launches that do not depend on the batch are half of it (`Shape.strict`). The other half is here: a prompt's tokens go
through prefill and drawn ones through decode, whose sums have another order, also when a preempted sequence is computed
again in chunks that mix them. A chunk of one token is a decode row to the kernels, so a prompt's chunk behind its first
token begins one token earlier (`Piece.lead`) and writes the same keys and values there once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..steps.rows import Piece
from .sequences import DeviceSequence


def as_first_computed(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces of a step, drawn tokens of strict sequences in pieces of their own."""
    for piece in pieces:
        state, end = piece.state, piece.start + piece.length
        assert isinstance(state, DeviceSequence)
        drawn = max(piece.start, state.prompt_tokens)
        if not state.strict or piece.length == 1 or end <= drawn:
            yield piece
            continue
        if piece.start < drawn:
            yield piece._replace(length=drawn - piece.start, sample=False)
        for position in range(drawn, end):
            yield piece._replace(start=position, length=1, sample=piece.sample and position == end - 1, scored=0)
