"""What the packet tells the sampler about each row of logits: the CPU sampler's records, and lists.

Whatever every row has is written for all rows at once; Python loops over those that have more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.sampling.gpu_rows import ROW_WORDS
from ...kernels.sampling.rows import ROW, Float32Array, Int32Array, Int64Array
from ..steps.rows import Piece
from .arena import Arena, Layout
from .sequences import NO_SLOT, UNREAD, DeviceSequence

EDITS = 2048  # logit biases and banned tokens of a sequence: the protocol allows fewer


def add_sampling_rows(layout: Layout, rows: int) -> None:
    """The sampler's part of a packet's front."""
    layout.add("sampling", torch.int32, rows, ROW_WORDS)
    layout.add("seen_slots", torch.int32, rows)
    layout.add("mask_slots", torch.int32, rows)
    layout.add("edit_starts", torch.int32, rows + 1)


def add_edits(layout: Layout, chunks: int) -> None:
    """The lists of a packet: only a sequence that draws has entries, so there are no more than chunks."""
    layout.add("edit_tokens", torch.int32, chunks * EDITS)
    layout.add("edit_values", torch.float32, chunks * EDITS)


class LogitRows(NamedTuple):
    """Rows of logits in the order of their pieces, and in a piece those that are scored before the one that draws."""

    owners: Int64Array  # [R]: the row's piece
    draws: npt.NDArray[np.bool_]  # [R]
    tokens: Int64Array  # [R]: its token of the batch
    ends: Int64Array  # [C]: rows up to a piece's last

    @classmethod
    def of(cls, starts: Int32Array, leads: Int64Array, scored: Int64Array, sample: Int64Array) -> Self:
        """Of pieces that begin at these tokens of the batch; `starts` [C + 1] ends with the number of tokens.

        The first `leads` tokens of a piece have no rows.
        """
        sizes = scored + sample
        ends = np.cumsum(sizes)
        owners = np.repeat(np.arange(len(sizes)), sizes)
        places = np.arange(len(owners)) - (ends - sizes)[owners]
        draws = places == scored[owners]
        return cls(owners, draws, np.where(draws, starts[owners + 1] - 1, (starts[:-1] + leads)[owners] + places), ends)


class SamplingPart:
    """The sampler's part of one packet, as arrays."""

    def __init__(self, packet: Arena) -> None:
        self._words: Int32Array = packet["sampling"].numpy()
        records: npt.NDArray[np.void] = self._words.reshape(-1).view(ROW)
        self._positions, self._targets, self._tops = (records[name] for name in ("position", "target", "top"))
        self._seen_slots: Int32Array = packet["seen_slots"].numpy()
        self._edit_starts: Int32Array = packet["edit_starts"].numpy()
        self._edit_tokens: Int32Array = packet["edit_tokens"].numpy()
        self._edit_values: Float32Array = packet["edit_values"].numpy()
        packet["mask_slots"].fill_(NO_SLOT)  # no row has a grammar

    def fill(
        self, size: int, rows: LogitRows, slots: Int32Array, pieces: Sequence[Piece], states: Sequence[DeviceSequence]
    ) -> tuple[int, bool]:
        """Write these rows, padded to `size`; (entries of the edit lists, whether a log probability is asked for).

        `slots` [R]: those of rows that draw. Padding rows only report, and nobody asked.
        """
        count = len(rows.owners)
        parameters = np.frombuffer(b"".join([state.parameters for state in states]), np.int32).reshape(-1, ROW_WORDS)
        self._words[:count] = parameters[rows.owners]
        self._words[count:size] = _PADDING
        self._positions[:count] = np.array([piece.start + piece.length for piece in pieces], np.int64)[rows.owners]
        counts = np.array([state.seen is not None for state in states], np.bool_)[rows.owners]
        self._seen_slots[:count] = np.where(counts, slots, NO_SLOT)
        self._seen_slots[count:size] = NO_SLOT
        for index, piece in enumerate(pieces):
            if piece.scored:
                self._score(int(rows.ends[index]) - piece.scored - piece.sample, piece, states[index])
        edits = self._fill_edits(size, rows, pieces, states)
        return edits, bool(self._tops[:count].max(initial=-1) >= 0)

    def _score(self, row: int, piece: Piece, state: DeviceSequence) -> None:
        """Rows that report the log probability of the prompt's next token."""
        first, stop = piece.start + 1, row + piece.scored
        self._targets[row:stop] = state.tokens.array[first : first + piece.scored]
        self._tops[row:stop] = state.prompt_top

    def _fill_edits(self, size: int, rows: LogitRows, pieces: Sequence[Piece], states: Sequence[DeviceSequence]) -> int:
        listed = [index for index, state in enumerate(states) if state.listed and pieces[index].sample]
        edits, row = 0, 0
        for index in listed:
            last = int(rows.ends[index])
            self._edit_starts[row:last] = edits  # rows without a list, and this one's begin
            piece, row = pieces[index], last
            tokens, values = _edits(states[index], piece.start + piece.length)
            self._edit_tokens[edits : edits + len(tokens)] = tokens
            self._edit_values[edits : edits + len(tokens)] = values
            edits += len(tokens)
        self._edit_starts[row : size + 1] = edits
        return edits


def seen_counts(state: DeviceSequence) -> Int32Array:
    """Pairs (token, entry of the table) of a sequence's seen tokens: 1, and 2 for every time it was drawn."""
    seen = state.seen
    assert seen is not None
    for token in state.drawn[state.counted :]:
        assert token != UNREAD, "counts of a token that the host does not know"
        seen.add_generated(token)
    state.counted = len(state.drawn)
    return np.stack([seen.tokens.view(), 1 + 2 * seen.counts.view()])


def _edits(state: DeviceSequence, position: int) -> tuple[Int32Array, Float32Array]:
    """Bias and bans as one list of distinct tokens: a ban is a bias of -inf, and beats any other."""
    if not state.bans_at(position):
        return state.bias_tokens, state.bias_values
    kept = ~np.isin(state.bias_tokens, state.banned)
    tokens = np.concatenate([state.bias_tokens[kept], state.banned])
    values = np.concatenate([state.bias_values[kept], np.full(len(state.banned), -np.inf, np.float32)])
    return tokens, values


def _padding() -> Int32Array:
    row = np.zeros(1, ROW)
    row["repetition"], row["top_p"], row["target"], row["top"] = 1.0, 1.0, 0, -1
    return row.view(np.int32)


_PADDING = _padding()
