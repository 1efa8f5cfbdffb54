"""The sequences that a GPU worker knows: their token ids as far as the host has them, their blocks, their slots.

A sequence that runs has a slot on the device: its block table and the token drawn last. Slots are few; a sequence that
has not run for long gives its slot away and gets another, with its whole table, when it runs again. A drawn token is
UNREAD until its step is finished, in another thread: a list item is assigned there, nothing else is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ...kernels.sampling.rows import Int32Array
from ..steps.rows import Piece, piece_of
from ..steps.sequence_state import SequenceState, check_record, sampling_row
from ..steps.step import NewSequence, StepChunk

UNREAD = -1
NO_SLOT = -1


def counting_slots(slots: int) -> int:
    """So many slots, the first ones, have a line of counts of seen tokens: a line is as long as the vocabulary.

    Slots are for the sequences of three steps, and these for those of one. That is enough: only a sequence of the step
    being begun must have its slot. One of the step still in flight may lose it, for by the time it runs again that
    step was read, and what the sequence needs is on the host.
    """
    return max(1, slots // 3)


class DeviceSequence(SequenceState):
    """`tokens` are those that came with the record; what was drawn since is in `drawn`."""

    __slots__ = ("counted", "drawn", "fresh", "installed", "known", "listed", "parameters", "top")

    def __init__(self, record: NewSequence, vocab_size: int) -> None:
        super().__init__(record, NO_SLOT, vocab_size)
        self.known = self.tokens.size
        self.drawn: list[int] = []
        self.installed = 0  # blocks that the device has in its slot
        self.counted = 0  # of drawn: in the host's counts of seen tokens
        self.fresh = True  # in its slot: the device has no counts of it yet
        self.listed = self.bias_tokens.size + self.banned.size > 0  # it may have edits
        row = sampling_row(record.sampling, vocab_size)
        self.parameters, self.top = row.tobytes(), int(row["top"])  # bytes: those of a whole step join fastest

    @property
    def total(self) -> int:
        return self.known + len(self.drawn)

    @property
    def unread(self) -> bool:
        return bool(self.drawn) and self.drawn[-1] == UNREAD

    def lead(self, start: int) -> int:
        """One under strict determinism within the prompt (strict.py says why)."""
        return int(self.strict and 0 < start < self.prompt_tokens)

    def id_at(self, place: int) -> int:
        """Its token at a place, UNREAD where only the device knows it."""
        return self.drawn[place - self.known] if place >= self.known else int(self.tokens.array[place])

    def ids(self, start: int, length: int) -> Int32Array | list[int]:
        """Its tokens [start, start + length)."""
        known = self.known
        if start + length <= known:
            return self.tokens.array[start : start + length]
        drawn = self.drawn[max(0, start - known) : start + length - known]
        return drawn if start >= known else [*self.tokens.array[start:known].tolist(), *drawn]

    def bans_at(self, position: int) -> bool:
        """Are stop tokens masked for the token at this place?"""
        return self.banned.size > 0 and position - self.prompt_tokens < self.min_tokens


def states_of(pieces: Sequence[Piece]) -> list[DeviceSequence]:
    return cast("list[DeviceSequence]", [piece.state for piece in pieces])  # a SequenceTable makes no others


class SlotPool:
    """Slots, and who holds them. A step holds all that it wants before it takes, so that it takes none of its own."""

    def __init__(self, slots: range) -> None:
        self._free = list(slots)
        self._holders: dict[int, DeviceSequence] = {}  # those that ran last at the end

    def hold(self, sequence: int, state: DeviceSequence) -> None:
        self._holders.pop(sequence, None)
        self._holders[sequence] = state

    def release(self, sequence: int, slot: int) -> None:
        self._free.append(slot)  # steps in flight still use it, and run before whoever gets it next
        del self._holders[sequence]

    def take(self) -> int:
        """A free slot, or that of the sequence that has not run for longest."""
        if self._free:
            return self._free.pop()
        sequence, state = next(iter(self._holders.items()))
        slot, state.slot, state.installed, state.fresh = state.slot, NO_SLOT, 0, True
        del self._holders[sequence]
        return slot


class SequenceTable:
    """Sequences by id, and who has which slot. One thread calls it."""

    def __init__(self, *, vocab_size: int, block_size: int, max_model_len: int, slots: int) -> None:
        self._vocab_size, self._block_size, self._max_model_len = vocab_size, block_size, max_model_len
        self._sequences: dict[int, DeviceSequence] = {}
        counting = counting_slots(slots)
        self._counting, self._plain = SlotPool(range(counting)), SlotPool(range(counting, slots))

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, record: NewSequence) -> None:
        check_record(record, self._sequences, self._max_model_len)
        self._sequences[record.sequence] = DeviceSequence(record, self._vocab_size)

    def drop(self, sequence: int) -> None:
        """Forget a sequence. Unknown ids are fine: it may have come and gone before a step was planned for it."""
        state = self._sequences.pop(sequence, None)
        if state is not None and state.slot != NO_SLOT:
            self._pool(state).release(sequence, state.slot)

    def piece(self, chunk: StepChunk) -> Piece:
        """The whole of a chunk; its blocks are appended to the sequence's table."""
        return piece_of(self._sequences.get(chunk.sequence), chunk, self._block_size)

    def give_slots(self, pieces: Sequence[Piece]) -> None:
        """Every sequence of a step gets a slot, or keeps its own. Answers of all steps but the last were read."""
        states = states_of(pieces)
        for piece, state in zip(pieces, states, strict=True):
            self._pool(state).hold(piece.sequence, state)
        lacking = [state for state in states if state.slot == NO_SLOT]
        for state in lacking:
            if state.slot == NO_SLOT:  # no other piece of it came first
                assert not state.unread, "a token that only its lost slot knew"
                state.slot = self._pool(state).take()
        assert not lacking or all(state.slot != NO_SLOT for state in states), "fewer slots than sequences in a step"

    def _pool(self, state: DeviceSequence) -> SlotPool:
        return self._plain if state.seen is None else self._counting


def table_updates(pieces: Sequence[Piece], width: int) -> tuple[Int32Array, Int32Array]:
    """(places, values) in the slot rows [slots, 1 + width] that bring the device's block tables up to date."""
    places, values = list[Int32Array](), list[Int32Array]()
    for state in states_of(pieces):
        if state.installed < state.blocks.size:
            first = state.slot * (width + 1) + 1
            places.append(np.arange(first + state.installed, first + state.blocks.size, dtype=np.int32))
            values.append(state.blocks.array[state.installed : state.blocks.size])
            state.installed = state.blocks.size
    if not places:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(places), np.concatenate(values)
