"""Slots go round among more sequences than there are, and no sequence loses a token that only the device knows."""

from __future__ import annotations

import numpy as np
import pytest

from triolet.models.gpu.sampler import seen_counts
from triolet.models.gpu.sequences import (
    NO_SLOT,
    UNREAD,
    DeviceSequence,
    DeviceSequences,
    counting_slots,
    table_updates,
)
from triolet.models.steps.sequences import Piece
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk, SequenceRecord

WIDTH = 4
PLAIN, PENALTY = Sampling(min_tokens=2), Sampling(presence_penalty=1.0)


def table_with(sequences: int, slots: int, sampling: Sampling = PLAIN) -> DeviceSequences:
    table = DeviceSequences(vocab_size=50, max_model_len=256, slots=slots)
    for number in range(sequences):
        add(table, number, sampling)
    return table


def add(table: DeviceSequences, number: int, sampling: Sampling) -> None:
    table.add(
        SequenceRecord(sequence=number, tokens=(1, 2, 3), prompt_tokens=2, sampling=sampling, stop_token_ids=(4,))
    )


def run(
    table: DeviceSequences, number: int, start: int, count: int, blocks: tuple[int, ...] = ()
) -> Piece[DeviceSequence]:
    piece = table.piece(Chunk(sequence=number, start=start, count=count, blocks=blocks, sample=True))
    table.give_slots([piece])
    return piece


def test_the_sequence_that_has_not_run_for_longest_gives_its_slot() -> None:
    table = table_with(3, 3)
    first, second = (run(table, number, 0, 3, (10 + number,)) for number in (0, 1))
    assert {first.state.slot, second.state.slot} == {1, 2}
    places, values = table_updates([first, second], WIDTH)
    assert places.tolist() == [first.state.slot * 5 + 1, second.state.slot * 5 + 1]
    assert values.tolist() == [10, 11]
    assert not len(table_updates([first, second], WIDTH)[0])  # the device has them
    run(table, 0, 0, 3)
    third = run(table, 2, 0, 3, (12,))
    assert (second.state.slot, third.state.slot) == (NO_SLOT, 3 - first.state.slot)
    # It comes back, with its whole table, in the slot of another.
    back = run(table, 1, 0, 3, (13,))
    assert (first.state.slot, back.state.slot) == (NO_SLOT, 3 - third.state.slot)
    assert table_updates([back], WIDTH)[1].tolist() == [11, 13]


def test_sequences_with_penalties_share_the_slots_that_count() -> None:
    """Three slots, of which one counts: plain sequences leave it alone, and those with penalties leave theirs."""
    table = table_with(2, 3)
    for number in (2, 3):
        add(table, number, PENALTY)
    plain = [run(table, number, 0, 3, (number,)) for number in (0, 1)]
    first = run(table, 2, 0, 3, (2,))
    assert first.state.slot < counting_slots(3) == 1
    first.state.fresh = False
    second = run(table, 3, 0, 3, (3,))
    assert (first.state.slot, second.state.slot) == (NO_SLOT, 0)
    assert {piece.state.slot for piece in plain} == {1, 2}
    first.state.drawn.append(7)  # what it drew meanwhile was read, and is counted anew
    assert run(table, 2, 3, 1).state.fresh
    assert seen_counts(first.state).T.tolist() == [[1, 1], [2, 1], [3, 3], [7, 3]]


def test_a_token_that_only_the_device_knows() -> None:
    """The slot it lies in may be given away while its step is in flight, but not be missing when it is wanted."""
    table = table_with(2, 3, PENALTY)
    first = run(table, 0, 0, 3, (0,))
    first.state.drawn.append(UNREAD)
    assert run(table, 0, 3, 1).state.slot == 0  # the next step, one ahead
    run(table, 1, 0, 3, (1,))
    assert first.state.slot == NO_SLOT
    with pytest.raises(AssertionError, match="only its lost slot knew"):
        run(table, 0, 3, 1)
    with pytest.raises(AssertionError, match="host does not know"):
        seen_counts(first.state)
    first.state.drawn[-1] = 9
    assert run(table, 0, 3, 1).state.slot == 0


def test_no_sequence_of_a_step_loses_its_slot_to_another() -> None:
    table = table_with(4, 3)
    pieces = [table.piece(Chunk(sequence=number, start=0, count=3, blocks=(number,))) for number in range(3)]
    table.give_slots(pieces[:2])
    table.give_slots([pieces[2], pieces[0]])
    assert [piece.state.slot == NO_SLOT for piece in pieces] == [False, True, False]
    with pytest.raises(AssertionError, match="fewer slots than sequences in a step"):
        table.give_slots(pieces)


def test_a_dropped_sequence_frees_its_slot() -> None:
    for sampling in (PLAIN, PENALTY):
        table = table_with(2, 2, sampling)
        slot = run(table, 0, 0, 3, (0,)).state.slot
        table.drop(0)
        table.drop(99)
        assert run(table, 1, 0, 3, (1,)).state.slot == slot
        assert len(table) == 1


def test_pieces_of_one_sequence_share_its_slot_and_bring_its_table_once() -> None:
    """Its tail recomputed token by token, the first of them once more; the blocks came with the first piece."""
    table = table_with(2, 6)
    other = run(table, 1, 0, 3, (9,))
    chunks = [
        Chunk(sequence=0, start=0, count=2, blocks=(5, 6)),
        Chunk(sequence=0, start=1, count=1),
        Chunk(sequence=0, start=2, count=1, sample=True),
    ]
    pieces = [table.piece(chunk) for chunk in chunks]
    table.give_slots([pieces[0], other, *pieces[1:]])
    (slot,) = {piece.state.slot for piece in pieces}
    assert slot not in (NO_SLOT, other.state.slot)
    places, values = table_updates(pieces, WIDTH)
    assert (places.tolist(), values.tolist()) == ([slot * 5 + 1, slot * 5 + 2], [5, 6])
    table.drop(0)
    add(table, 0, PLAIN)
    assert run(table, 0, 0, 3, (1,)).state.slot == slot  # it was given once, so it is free once


def test_ids_are_the_hosts_as_far_as_it_knows_them() -> None:
    table = table_with(1, 3)
    state = run(table, 0, 0, 3, (0,)).state
    assert np.array_equal(state.ids(1, 2), [2, 3])
    state.drawn += [9, UNREAD]
    assert state.total == 5
    assert np.array_equal(state.ids(2, 3), [3, 9, UNREAD])
    assert np.array_equal(state.ids(4, 1), [UNREAD])
    assert [state.id_at(place) for place in range(5)] == [1, 2, 3, 9, UNREAD]
    assert [state.banned_at(position).size > 0 for position in (2, 3, 4)] == [True, True, False]
