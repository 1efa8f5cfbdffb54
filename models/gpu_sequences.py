"""The sequences that a GPU worker knows: their token ids as far as the host has them, their blocks, their slots.

A sequence that runs has a slot on the device: its block table and the token drawn last. Slots are few; a sequence that
has not run for long gives its slot away and gets another, with its whole table, when it runs again. A drawn token is
UNREAD until its step is finished, in another thread: a list item is assigned there, nothing else is shared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels.sampling.rows import Int32Array
from .rows import Piece
from .sequence_state import SequenceState, sampling_row
from .step import NewSequence, StepChunk

UNREAD = -1
NO_SLOT = -1


class DeviceSequence(SequenceState):
    """`tokens` are those that came with the record; what was drawn since is in `drawn`."""

    __slots__ = ("counted", "drawn", "fresh", "installed", "row")

    def __init__(self, record: NewSequence, vocab_size: int) -> None:
        super().__init__(record, NO_SLOT, vocab_size)
        self.drawn: list[int] = []
        self.installed = 0  # blocks that the device has in its slot
        self.counted = 0  # of drawn: in the host's counts of seen tokens
        self.fresh = True  # in its slot: the device has no counts of it yet
        self.row = sampling_row(record.sampling, vocab_size)

    @property
    def total(self) -> int:
        return self.tokens.size + len(self.drawn)

    @property
    def unread(self) -> bool:
        return bool(self.drawn) and self.drawn[-1] == UNREAD

    def ids(self, start: int, length: int) -> Int32Array | list[int]:
        """Its tokens [start, start + length), UNREAD for one that only the device knows."""
        known = self.tokens.size
        if start + length <= known:
            return self.tokens.array[start : start + length]
        drawn = self.drawn[max(0, start - known) : start + length - known]
        return drawn if start >= known else [*self.tokens.array[start:known].tolist(), *drawn]

    def bans_at(self, position: int) -> bool:
        """Are stop tokens masked for the token at this place?"""
        return self.banned.size > 0 and position - self.prompt_tokens < self.min_tokens


class SequenceTable:
    """Sequences by id, and who has which slot. One thread calls it."""

    def __init__(self, *, vocab_size: int, block_size: int, max_model_len: int, slots: int) -> None:
        self._vocab_size, self._block_size, self._max_model_len = vocab_size, block_size, max_model_len
        self._sequences: dict[int, DeviceSequence] = {}
        self._free = list(range(slots))
        self._holders: dict[int, None] = {}  # sequences with a slot, those that ran last at the end

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, record: NewSequence) -> None:
        if record.sequence in self._sequences:
            raise ValueError(f"sequence {record.sequence} is already here; drop it first")
        if not 0 < record.prompt_tokens <= len(record.tokens) <= self._max_model_len:
            raise ValueError(f"sequence {record.sequence}: expected 1 to {self._max_model_len} tokens, prompt first")
        self._sequences[record.sequence] = DeviceSequence(record, self._vocab_size)

    def drop(self, sequence: int) -> None:
        """Forget a sequence. Unknown ids are fine: it may have come and gone before a step was planned for it."""
        state = self._sequences.pop(sequence, None)
        if state is not None and state.slot != NO_SLOT:
            self._free.append(state.slot)  # steps in flight still use the slot, and run before whoever gets it next
            del self._holders[sequence]

    def piece(self, chunk: StepChunk) -> Piece:
        """The whole of a chunk; its blocks are appended to the sequence's table."""
        state = self._sequences.get(chunk.sequence)
        if state is None:
            raise ValueError(f"sequence {chunk.sequence} is not known here; send its record first")
        if chunk.blocks:
            state.blocks.extend(chunk.blocks)
        end = chunk.start + chunk.count
        if chunk.start < 0 or chunk.count < 1 or end > state.total or (chunk.sample and end < state.total):
            raise ValueError(f"chunk [{chunk.start}, {end}) of sequence {chunk.sequence} of {state.total} tokens")
        if end > state.blocks.size * self._block_size:
            raise ValueError(f"{state.blocks.size} blocks do not hold {end} tokens of sequence {chunk.sequence}")
        scored = max(0, min(end, state.prompt_tokens - 1) - chunk.start) if chunk.prompt_logprobs else 0
        return Piece(chunk.sequence, state, chunk.start, chunk.count, chunk.sample, scored)

    def give_slots(self, pieces: Sequence[Piece]) -> None:
        """Every sequence of a step gets a slot, or keeps its own."""
        for piece in pieces:
            self._holders.pop(piece.sequence, None)
            self._holders[piece.sequence] = None
        for piece in pieces:
            if piece.state.slot == NO_SLOT:
                piece.state.slot = self._free.pop() if self._free else self._take_slot()

    def _take_slot(self) -> int:
        """From the sequence that has not run for longest. One with an unread token still needs its own."""
        for sequence in self._holders:
            state = self._sequences[sequence]
            if state.slot != NO_SLOT and not state.unread:
                slot, state.slot, state.installed, state.fresh = state.slot, NO_SLOT, 0, True
                del self._holders[sequence]
                return slot
        raise AssertionError("fewer slots than the sequences of three steps")


def table_updates(pieces: Sequence[Piece], width: int) -> tuple[Int32Array, Int32Array]:
    """(places, values) in the slot rows [slots, 1 + width] that bring the device's block tables up to date."""
    places, values = list[Int32Array](), list[Int32Array]()
    for piece in pieces:
        state = piece.state
        assert isinstance(state, DeviceSequence)
        if state.installed < state.blocks.size:
            first = state.slot * (width + 1) + 1
            places.append(np.arange(first + state.installed, first + state.blocks.size, dtype=np.int32))
            values.append(state.blocks.array[state.installed : state.blocks.size])
            state.installed = state.blocks.size
    if not places:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(places), np.concatenate(values)
