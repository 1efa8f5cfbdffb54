"""Slots go round among more sequences than there are, and no sequence loses a token that only the device knows."""

from __future__ import annotations

import numpy as np
import pytest

from triolet.models.gpu_sequences import NO_SLOT, UNREAD, DeviceSequence, SequenceTable, table_updates
from triolet.models.rows import Piece
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk, SequenceRecord

WIDTH = 4
PENALTY = Sampling(presence_penalty=1.0, min_tokens=2)


def table_with(sequences: int, slots: int) -> SequenceTable:
    table = SequenceTable(vocab_size=50, block_size=64, max_model_len=256, slots=slots)
    for number in range(sequences):
        table.add(
            SequenceRecord(sequence=number, tokens=(1, 2, 3), prompt_tokens=2, sampling=PENALTY, stop_token_ids=(4,))
        )
    return table


def run(table: SequenceTable, number: int, start: int, count: int, blocks: tuple[int, ...] = ()) -> Piece:
    piece = table.piece(Chunk(sequence=number, start=start, count=count, blocks=blocks, sample=True))
    table.give_slots([piece])
    return piece


def state_of(piece: Piece) -> DeviceSequence:
    assert isinstance(piece.state, DeviceSequence)
    return piece.state


def test_the_sequence_that_has_not_run_for_longest_gives_its_slot() -> None:
    table = table_with(3, 2)
    first, second = (run(table, number, 0, 3, (10 + number,)) for number in (0, 1))
    assert {first.state.slot, second.state.slot} == {0, 1}
    places, values = table_updates([first, second], WIDTH)
    assert places.tolist() == [first.state.slot * 5 + 1, second.state.slot * 5 + 1]
    assert values.tolist() == [10, 11]
    assert not len(table_updates([first, second], WIDTH)[0])  # the device has them
    run(table, 0, 0, 3)
    third = run(table, 2, 0, 3, (12,))
    assert (second.state.slot, third.state.slot) == (NO_SLOT, 1 - first.state.slot)
    # It comes back, with its whole table, in the slot of another; what it has drawn is counted anew.
    state_of(first).drawn.append(7)
    state_of(second).fresh = False
    back = run(table, 1, 0, 3, (13,))
    assert back.state.slot == 1 - third.state.slot
    assert table_updates([back], WIDTH)[1].tolist() == [11, 13]


def test_an_unread_token_keeps_its_slot() -> None:
    table = table_with(3, 2)
    first, second = (run(table, number, 0, 3, (number,)) for number in (0, 1))
    state_of(first).drawn.append(UNREAD)
    run(table, 2, 0, 3, (2,))
    assert first.state.slot != NO_SLOT
    assert second.state.slot == NO_SLOT
    state_of(run(table, 2, 0, 3)).drawn.append(UNREAD)
    with pytest.raises(AssertionError, match="fewer slots"):
        run(table, 1, 0, 3)


def test_a_dropped_sequence_frees_its_slot() -> None:
    table = table_with(2, 1)
    slot = run(table, 0, 0, 3, (0,)).state.slot
    table.drop(0)
    table.drop(99)
    assert run(table, 1, 0, 3, (1,)).state.slot == slot
    assert len(table) == 1


def test_ids_are_the_hosts_as_far_as_it_knows_them() -> None:
    table = table_with(1, 1)
    state = state_of(run(table, 0, 0, 3, (0,)))
    assert np.array_equal(state.ids(1, 2), [2, 3])
    state.drawn += [9, UNREAD]
    assert state.total == 5
    assert np.array_equal(state.ids(2, 3), [3, 9, UNREAD])
    assert np.array_equal(state.ids(4, 1), [UNREAD])
    assert [state.bans_at(position) for position in (2, 3, 4)] == [True, True, False]
