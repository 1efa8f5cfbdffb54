"""What the packet tells the sampler about each row of logits: the CPU sampler's records, and lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.sampling.gpu_rows import ROW_WORDS
from ..kernels.sampling.rows import ROW, Int32Array
from .gpu_arena import Arena, Layout
from .gpu_sequences import NO_SLOT, DeviceSequence
from .rows import Piece

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


def fill_sampling(packet: Arena, rows: int, pieces: Sequence[Piece]) -> tuple[int, bool]:
    """Write the rows of these pieces, padded to `rows`; (edits, whether a log probability is asked for).

    Padding rows only report, and nobody asked.
    """
    records: npt.NDArray[np.void] = packet["sampling"].numpy().reshape(-1).view(ROW)
    seen_slots, edit_starts = packet["seen_slots"].numpy(), packet["edit_starts"].numpy()
    edit_tokens, edit_values = packet["edit_tokens"].numpy(), packet["edit_values"].numpy()
    row = edits = 0
    for piece in pieces:
        state = piece.state
        assert isinstance(state, DeviceSequence)
        if piece.scored:
            mine = slice(row, row + piece.scored)
            records[mine] = state.row
            records["target"][mine] = state.tokens.array[piece.start + 1 : piece.start + 1 + piece.scored]
            records["top"][mine] = state.prompt_top
            seen_slots[mine], edit_starts[mine] = NO_SLOT, edits
            row += piece.scored
        if piece.sample:
            position = piece.start + piece.length
            records[row] = state.row
            records["position"][row] = position
            seen_slots[row], edit_starts[row] = NO_SLOT if state.seen is None else state.slot, edits
            tokens, values = _edits(state, position)
            edit_tokens[edits : edits + len(tokens)] = tokens
            edit_values[edits : edits + len(tokens)] = values
            edits += len(tokens)
            row += 1
    asked = bool((records["top"][:row] >= 0).any())
    records[row:rows] = _PADDING
    seen_slots[row:rows] = NO_SLOT
    packet["mask_slots"][:rows] = NO_SLOT
    edit_starts[row : rows + 1] = edits
    return edits, asked


def seen_counts(state: DeviceSequence) -> Int32Array:
    """Pairs (token, entry of the table) of a sequence's seen tokens: 1, and 2 for every time it was drawn."""
    seen = state.seen
    assert seen is not None
    for token in state.drawn[state.counted :]:
        seen.add_generated(token)
    state.counted = len(state.drawn)
    return np.stack([seen.tokens.view(), 1 + 2 * seen.counts.view()])


def _edits(state: DeviceSequence, position: int) -> tuple[Int32Array, npt.NDArray[np.float32]]:
    if not state.bans_at(position):
        return state.bias_tokens, state.bias_values
    kept = ~np.isin(state.bias_tokens, state.banned)
    tokens = np.concatenate([state.bias_tokens[kept], state.banned])
    values = np.concatenate([state.bias_values[kept], np.full(len(state.banned), -np.inf, np.float32)])
    return tokens, values


def _padding() -> npt.NDArray[np.void]:
    row = np.zeros((), ROW)
    row["repetition"], row["top_p"], row["target"], row["top"] = 1.0, 1.0, 0, -1
    return row


_PADDING = _padding()
