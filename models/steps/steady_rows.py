"""The rows of a step whose sequences all go on by one token, as they do while answers stream: kept and moved on.

What RowStore and the sampler would build anew for every step differs from the last one's by little: the tokens are
those just drawn, positions grow by one, and now and then a table gets a block. The sequences themselves hear of their
tokens when the rows end: what a step touches has been driven out of the caches by the weights, one sequence after
another.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...kernels.sampling.numbers import GREEDY_BELOW
from ...kernels.sampling.rows import Int32Array, Sampled, SamplingRows
from .batch import Batch
from .step import ChunkResult, StepChunk

if TYPE_CHECKING:
    from .rows import Piece


class SteadyRows:
    """One step's batch and sampler rows, both owned; `advance` makes them the next step's."""

    def __init__(self, pieces: "Sequence[Piece]", batch: Batch, rows: SamplingRows, block_size: int) -> None:
        self.pieces = pieces  # of whichever step; `start` is the first one's
        self.batch = batch
        self.rows = rows
        self.greedy = bool(np.all((rows.rows["temperature"] < GREEDY_BELOW) | (rows.rows["top_k"] == 1)))
        self._block_size = block_size
        self._ids = [piece.sequence for piece in pieces]
        self._starts = [piece.start + 1 for piece in pieces]  # the next step's
        self._room = [piece.state.blocks.size * block_size for piece in pieces]  # tokens that their blocks hold
        self._positions = rows.rows["position"]  # a view
        self._drawn: Int32Array = batch.tokens  # the next step's tokens
        self._untold: list[list[int]] = []  # tokens of each step that the sequences have not heard of

    @classmethod
    def after(
        cls, pieces: "Sequence[Piece]", batch: Batch, rows: SamplingRows, sampled: Sampled, block_size: int
    ) -> "SteadyRows | None":
        """Those of a step that has run; None if the next one is likely to need more than moving on."""
        for piece in pieces:
            if piece.length != 1 or not piece.sample or piece.scored or piece.lead or not piece.state.plain:
                return None
        if (rows.rows["top"] >= 0).any():
            return None
        steady = cls(pieces, batch, rows, block_size)
        steady._drawn = sampled.tokens
        return None if any(sampled.status.tolist()) else steady

    def collect(self, sampled: Sampled) -> list[ChunkResult] | None:
        """What RowStore.collect gives where every row gave its token. None: one did not, and these rows end here."""
        if any(sampled.status.tolist()):
            return None
        self._drawn = sampled.tokens
        tokens = sampled.tokens.tolist()
        self._untold.append(tokens)
        return [ChunkResult(sequence=id, tokens=(token,)) for id, token in zip(self._ids, tokens, strict=True)]

    def settle(self) -> None:
        """Tell the sequences their tokens; before anybody else looks at them."""
        for piece, tokens in zip(self.pieces, zip(*self._untold, strict=True), strict=False):
            piece.state.tokens.extend(tokens)
        self._untold.clear()

    def advance(self, chunks: Sequence[StepChunk]) -> bool:
        """Move on to these chunks, if they are the same sequences' next tokens; if not, nothing has changed."""
        if [chunk.sequence for chunk in chunks] != self._ids:
            return False
        starts, room = self._starts, self._room
        growing: list[int] = []
        for index, chunk in enumerate(chunks):
            start = starts[index]
            if chunk.start != start or chunk.count != 1 or not chunk.sample or chunk.prompt_logprobs:
                return False
            if chunk.blocks:
                growing.append(index)
            elif start >= room[index]:
                return False
        for index in growing:
            blocks, added = self.pieces[index].state.blocks, chunks[index].blocks
            self.batch.block_tables[index, blocks.size : blocks.size + len(added)] = added
            blocks.extend(added)
            room[index] += len(added) * self._block_size
        self._starts = [start + 1 for start in starts]
        self.batch.tokens[:] = self._drawn
        for positions in (self.batch.positions, self._positions):
            positions += 1
        return True
