"""The sequences of a GPU worker: their token ids as far as the host has them, their blocks, their slots.

A running sequence has a slot on the device: its block table and the token drawn last. Slots are few. A sequence
idle for long loses its slot, and gets another, with its whole table, when it runs again. A drawn token is
UNREAD until its step is finished, in another thread: a list item is assigned there, nothing else is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ...kernels.sampling.rows import Int32Array
from ...protocol.steps import SequenceRecord
from ..guides.grammars import GrammarStore
from ..steps.adapters import LoadedAdapters
from ..steps.sequences import Piece, SequenceState, SequenceTable

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

    __slots__ = ("counted", "drawn", "fresh", "installed", "known", "slot")

    def __init__(self, record: SequenceRecord, vocab_size: int) -> None:
        super().__init__(record, vocab_size)
        self.slot = NO_SLOT
        self.known = self.tokens.size
        self.drawn: list[int] = []
        self.installed = 0  # blocks that the device has in its slot
        self.counted = 0  # of drawn: in the host's counts of seen tokens
        self.fresh = True  # in its slot: the device has no counts for it yet

    @property
    def total(self) -> int:
        return self.known + len(self.drawn)

    @property
    def unread(self) -> bool:
        return bool(self.drawn) and self.drawn[-1] == UNREAD

    def lead(self, start: int) -> int:
        """One under strict determinism within the prompt (see `as_first_computed`)."""
        return int(self.strict and 0 < start < self.prompt_tokens)

    def id_at(self, place: int) -> int:
        """Its token at a position, UNREAD if only the device has it."""
        return self.drawn[place - self.known] if place >= self.known else int(self.tokens.array[place])

    def ids(self, start: int, length: int) -> Int32Array | list[int]:
        """Its tokens [start, start + length)."""
        known = self.known
        if start + length <= known:
            return self.tokens.array[start : start + length]
        drawn = self.drawn[max(0, start - known) : start + length - known]
        return drawn if start >= known else [*self.tokens.array[start:known].tolist(), *drawn]

    def learn_forced(self, tokens: Sequence[int]) -> None:
        self.drawn += tokens
        if tokens and self.seen is not None:
            self.fresh = True  # the device has not counted them

    def learn_token(self, position: int, token: int) -> None:
        self.drawn[position - self.known] = token


Pieces: TypeAlias = Sequence[Piece[DeviceSequence]]


class SlotPool:
    """Slots and the sequences that hold them. A step holds its own slots first, so it never takes them for others."""

    def __init__(self, slots: range) -> None:
        self._free = list(slots)
        self._holders: dict[int, DeviceSequence] = {}  # those that ran last at the end

    def hold(self, sequence: int, state: DeviceSequence) -> None:
        self._holders.pop(sequence, None)
        self._holders[sequence] = state

    def release(self, sequence: int, slot: int) -> None:
        self._free.append(slot)  # steps in flight still use it, but run before those of its next holder
        del self._holders[sequence]

    def take_slot(self) -> int:
        """A free slot, or that of the sequence idle for longest."""
        if self._free:
            return self._free.pop()
        sequence, state = next(iter(self._holders.items()))
        slot, state.slot, state.installed, state.fresh = state.slot, NO_SLOT, 0, True
        del self._holders[sequence]
        return slot


class DeviceSequences(SequenceTable[DeviceSequence]):
    """Sequences by id, and their slots. Used by one thread."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_model_len: int,
        slots: int,
        max_step_tokens: int = 0,
        grammars: GrammarStore | None = None,
        adapters: LoadedAdapters | None = None,
    ) -> None:
        super().__init__(
            DeviceSequence,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            max_step_tokens=max_step_tokens,
            grammars=grammars,
            adapters=adapters,
        )
        counting = counting_slots(slots)
        self._counting, self._plain = SlotPool(range(counting)), SlotPool(range(counting, slots))

    def drop(self, sequence: int) -> DeviceSequence | None:
        state = super().drop(sequence)
        if state is not None and state.slot != NO_SLOT:
            self._pool(state).release(sequence, state.slot)
        return state

    def give_slots(self, pieces: Pieces) -> None:
        """Every sequence of a step gets a slot, or keeps its own. Answers of all steps but the last were read."""
        for piece in pieces:
            self._pool(piece.state).hold(piece.sequence, piece.state)
        lacking = [piece.state for piece in pieces if piece.state.slot == NO_SLOT]
        for state in lacking:
            if state.slot == NO_SLOT:  # no other piece of it came first
                assert not state.unread, "a token that only its lost slot knew"
                state.slot = self._pool(state).take_slot()
        kept = not lacking or all(piece.state.slot != NO_SLOT for piece in pieces)
        assert kept, "fewer slots than sequences in a step"

    def _pool(self, state: DeviceSequence) -> SlotPool:
        return self._plain if state.seen is None else self._counting


def table_updates(pieces: Pieces, width: int) -> tuple[Int32Array, Int32Array]:
    """(places, values) in the slot rows [slots, 1 + width] that bring the device's block tables up to date."""
    places, values = list[Int32Array](), list[Int32Array]()
    for state in [piece.state for piece in pieces]:
        if state.installed < state.blocks.size:
            first = state.slot * (width + 1) + 1
            places.append(np.arange(first + state.installed, first + state.blocks.size, dtype=np.int32))
            values.append(state.blocks.array[state.installed : state.blocks.size])
            state.installed = state.blocks.size
    if not places:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(places), np.concatenate(values)
