"""The sampler of a GPU: its part of the packet, and the launch that draws from the logits.

Each row of logits has the record of the CPU's sampler; some have lists too. Records are written for all rows at once,
and Python loops over rows with lists only. Counts of seen tokens live on the device, a line for each counting slot: the
kernel that draws a token counts it, so penalties of the next step include it before the host has read it.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.sampling.gpu_buffers import DeviceRows, DeviceSampled, Workspace, make_workspace
from ...kernels.sampling.gpu_launch import sample
from ...kernels.sampling.gpu_rows import ROW_WORDS
from ...kernels.sampling.rows import ROW, Float32Array, Int32Array, Int64Array, mask_words
from ..steps.sequences import Piece
from .arena import Arena, Layout
from .device import Device
from .sequences import NO_SLOT, UNREAD, DeviceSequence, Pieces, counting_slots

EDITS = 2048  # logit biases and banned tokens of a sequence: the protocol allows fewer
ALL_TOKENS = np.int32(-1)
SCRATCH = tuple(Workspace.__dataclass_fields__)


def add_sampling_rows(layout: Layout, rows: int) -> None:
    """The sampler's part of a packet's front."""
    layout.add("sampling", torch.int32, rows, ROW_WORDS)
    layout.add("seen_slots", torch.int32, rows)
    layout.add("mask_slots", torch.int32, rows)
    layout.add("edit_starts", torch.int32, rows + 1)


def add_edits(layout: Layout, chunks: int, vocab_size: int) -> None:
    """The lists and masks of a packet: only a sequence that draws has any, so there are no more than chunks."""
    layout.add("edit_tokens", torch.int32, chunks * EDITS)
    layout.add("edit_values", torch.float32, chunks * EDITS)
    layout.add("masks", torch.int32, chunks, mask_words(vocab_size))


def sampler_layout(vocab_size: int, rows: int, slots: int, capability: int) -> Layout:
    """What the launch works with on the device."""
    layout, shapes = Layout(), make_workspace(rows, vocab_size, capability, "meta")
    for name in SCRATCH:
        tensor: torch.Tensor = getattr(shapes, name)
        layout.add(f"sampler.{name}", tensor.dtype, *tensor.shape)
    layout.add("seen", torch.int32, counting_slots(slots), vocab_size)
    return layout


class DeviceSampler:
    """Launches on the packet's rows, into the results."""

    def __init__(self, device: Device, buffers: Arena, packet: Arena) -> None:
        self._capability = device.capability
        self._workspace = Workspace(**{name: buffers[f"sampler.{name}"] for name in SCRATCH})
        self._rows = DeviceRows(
            words=packet["sampling"],
            seen_slots=packet["seen_slots"],
            mask_slots=packet["mask_slots"],
            edit_starts=packet["edit_starts"],
            edit_tokens=packet["edit_tokens"],
            edit_values=packet["edit_values"],
            seen=buffers["seen"],
            masks=packet["masks"],
        )
        self._out = DeviceSampled(
            ids=buffers["drawn"],
            status=buffers["status"],
            logprobs=buffers["logprobs"],
            ranks=buffers["ranks"],
            top_ids=buffers["top_tokens"],
            top_logprobs=buffers["top_logprobs"],
        )

    def sample(self, logits: torch.Tensor) -> None:
        """Draw from every row of logits."""
        sample(logits, self._rows, self._workspace, self._out, capability=self._capability)


class LogitRows(NamedTuple):
    """Rows of logits in the order of their pieces, and in a piece those that are scored before the one that draws."""

    owners: Int64Array  # [R]: the row's piece
    draws: npt.NDArray[np.bool_]  # [R]
    tokens: Int64Array  # [R]: its token of the pass
    ends: Int64Array  # [C]: rows up to a piece's last

    @classmethod
    def of(cls, pieces: Pieces, starts: Int32Array, leads: Int64Array) -> Self:
        """Of pieces that begin at these tokens of the pass; `starts` [C + 1] ends with the number of tokens.

        The first `leads` tokens of a piece have no rows.
        """
        scored = np.array([piece.scored for piece in pieces], np.int64)
        sizes = scored + np.array([piece.sample for piece in pieces], np.int64)
        ends = np.cumsum(sizes)
        owners = np.repeat(np.arange(len(sizes)), sizes)
        places = np.arange(len(owners)) - (ends - sizes)[owners]
        draws = places == scored[owners]
        return cls(owners, draws, np.where(draws, starts[owners + 1] - 1, (starts[:-1] + leads)[owners] + places), ends)


class Filled(NamedTuple):
    """How much of a packet's lists a pass uses, and whether one of its rows asks for log probabilities."""

    edits: int
    masks: int
    asks: bool


class SamplingPart:
    """The sampler's part of one packet in host memory, as arrays."""

    def __init__(self, packet: Arena) -> None:
        self._words: Int32Array = packet["sampling"].numpy()
        records: npt.NDArray[np.void] = self._words.reshape(-1).view(ROW)
        self._positions, self._targets, self._tops = (records[name] for name in ("position", "target", "top"))
        self._seen_slots: Int32Array = packet["seen_slots"].numpy()
        self._edit_starts: Int32Array = packet["edit_starts"].numpy()
        self._edit_tokens: Int32Array = packet["edit_tokens"].numpy()
        self._edit_values: Float32Array = packet["edit_values"].numpy()
        self._mask_slots: Int32Array = packet["mask_slots"].numpy()
        self._masks: Int32Array = packet["masks"].numpy()

    def fill(self, size: int, rows: LogitRows, slots: Int32Array, pieces: Pieces) -> Filled:
        """Write these rows, padded to `size`.

        `slots` [R]: those of rows that draw. Padding rows only report, and their answer is not read.
        """
        count = len(rows.owners)
        joined = b"".join([piece.state.parameters for piece in pieces])
        self._words[:count] = np.frombuffer(joined, np.int32).reshape(-1, ROW_WORDS)[rows.owners]
        self._words[count:size] = _PADDING
        self._positions[:count] = np.array([piece.start + piece.length for piece in pieces], np.int64)[rows.owners]
        counts = np.array([piece.state.seen is not None for piece in pieces], np.bool_)[rows.owners]
        self._seen_slots[:count] = np.where(counts, slots, NO_SLOT)
        self._seen_slots[count:size] = NO_SLOT
        self._mask_slots[:size] = NO_SLOT
        edits = row = masks = 0
        for piece, end in zip(pieces, rows.ends.tolist(), strict=True):
            if piece.scored:  # rows that report the log probability of the prompt's next token
                drawn, first = end - piece.sample, piece.start + 1
                scored = slice(drawn - piece.scored, drawn)
                self._targets[scored] = piece.state.tokens.array[first : first + piece.scored]
                self._tops[scored] = piece.state.prompt_top
            if piece.state.edited and piece.sample:
                self._edit_starts[row:end] = edits  # rows without a list, and this one's begin
                tokens, values = _edits(piece.state, piece.start + piece.length)
                self._edit_tokens[edits : edits + len(tokens)] = tokens
                self._edit_values[edits : edits + len(tokens)] = values
                edits, row = edits + len(tokens), end
            if _masked(piece):
                self._mask_slots[end - 1] = masks
                masks += 1
        self._edit_starts[row : size + 1] = edits
        return Filled(edits, masks, bool(self._tops[:count].max(initial=-1) >= 0))

    def fill_masks(self, pieces: Pieces) -> None:
        """Write the masks of these rows, in their order."""
        for place, state in enumerate([piece.state for piece in pieces if _masked(piece)]):
            if state.guide is not None and not state.guide.ready:
                state.guide.fill()
            mask = state.mask
            self._masks[place] = ALL_TOKENS if mask is None else mask.view(np.int32)


def _masked(piece: Piece[DeviceSequence]) -> bool:
    """Whether its row has a mask. That of a guide may turn out to allow every token."""
    return piece.sample and (piece.state.guide is not None or piece.state.allowed is not None)


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
    banned = state.banned_at(position)
    if not banned.size:
        return state.bias_tokens, state.bias_values
    kept = ~np.isin(state.bias_tokens, banned)
    tokens = np.concatenate([state.bias_tokens[kept], banned])
    values = np.concatenate([state.bias_values[kept], np.full(len(banned), -np.inf, np.float32)])
    return tokens, values


def _padding() -> Int32Array:
    row = np.zeros(1, ROW)
    row["repetition"], row["top_p"], row["target"], row["top"] = 1.0, 1.0, 0, -1
    return row.view(np.int32)


_PADDING = _padding()
