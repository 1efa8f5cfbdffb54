"""A packet says what the pieces of a step say; lists do not wait for each other; answers reach their sequences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from triolet.kernels.sampling.rows import MAX_TOP, NOT_FINITE, ROW
from triolet.models.gpu.arena import Arena, Layout
from triolet.models.gpu.buckets import Buckets, GpuSizes, PassShape
from triolet.models.gpu.device import DeviceEvent
from triolet.models.gpu.packet import HostBuffers, Packet
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.sequences import NO_SLOT, UNREAD, DeviceSequence, DeviceSequences, table_updates
from triolet.models.steps.sequences import Piece, sampling_row
from triolet.models.steps.steps import PLACEHOLDER, collect
from triolet.protocol.events import TokenLogprob, TopLogprob
from triolet.protocol.steps import Chunk, Row, SequenceRecord

from .gpu_house import prompt_of, record

VOCAB, WIDTH, PROMPT = 120, 3, 20
BUCKETS = Buckets(max_tokens=96, max_chunks=12, max_rows=40)
SIZES = GpuSizes(max_model_len=192, buckets=BUCKETS)
Pieces = list[Piece[DeviceSequence]]
CHUNK_FIELDS = ("chunk_slots", "first_positions", "starts", "given_ids")
ROW_FIELDS = ("row_tokens", "row_slots", "seen_slots", "mask_slots", "edit_starts", "sampling")
KINDS: tuple[dict[str, Any], ...] = (  # Any: whatever an option may be
    {"temperature": 0.5, "seed": 7},
    {"frequency_penalty": 1.0, "logprobs": 3},
    {"logit_bias": [(7, 4.0), (8, -3.0)], "top_p": 0.5},
    {"logit_bias": [(7, 4.0), (4, 9.0)], "min_tokens": 3, "presence_penalty": 0.5},
    {"prompt_logprobs": 2, "min_tokens": 1},
    {"prompt_logprobs": 1, "strict": True},
    {"allowed_tokens": bytes(range(16)), "bad_words": ((5,), (6, 7)), "logit_bias": [(5, 4.0)]},
)


def table_record(number: int) -> SequenceRecord:
    return record(number, prompt_of(PROMPT, number), PROMPT, (4, 9), **KINDS[number % len(KINDS)])


def table_of_all_kinds() -> DeviceSequences:
    """Two sequences of each, whose last token only the device knows."""
    table = DeviceSequences(vocab_size=VOCAB, max_model_len=192, slots=36)
    for number in range(2 * len(KINDS)):
        table.add(table_record(number))
    pieces = [table.piece(Chunk(sequence=n, start=0, count=PROMPT, blocks=(n, n + 20))) for n in range(2 * len(KINDS))]
    table.give_slots(pieces)
    for state in [piece.state for piece in pieces]:
        state.drawn += [30 + state.slot, UNREAD]
    return table


def drawn_pieces(table: DeviceSequences, seed: int) -> Pieces:
    """A few of them: prompts, decoded tokens, and tails that are computed again, token by token."""
    rng, pieces = np.random.default_rng(seed), Pieces()
    for number in rng.permutation(2 * len(KINDS))[: rng.integers(1, 9)].tolist():
        kind = rng.integers(0, 4)
        if kind == 0:
            start, count = (int(value) for value in (rng.integers(0, 10), rng.integers(1, 10)))
            asks = "prompt_logprobs" in KINDS[number % len(KINDS)]
            chunks = [Chunk(sequence=number, start=start, count=count, prompt_logprobs=asks)]
        elif kind == 1 and len(pieces) < 3:
            tail = range(PROMPT - 1, PROMPT + 2)
            chunks = [Chunk(sequence=number, start=at, count=1, sample=at == tail[-1]) for at in tail]
        else:
            back = int(kind == 2)
            chunks = [Chunk(sequence=number, start=PROMPT + 1 - back, count=1 + back, sample=True)]
        pieces += [table.piece(chunk) for chunk in chunks]
    return pieces


def check_fill(host: HostBuffers, shape: PassShape, pieces: Pieces) -> None:
    """Row by row, from the pieces and their records."""
    ints, records = host.ints, host.packet["sampling"].numpy().reshape(-1).view(ROW)
    tokens = row = edits = masks = 0
    for index, piece in enumerate(pieces):
        state = piece.state
        end = piece.start + piece.length
        assert ints("chunk_slots")[index] == state.slot
        lead = int("strict" in KINDS[piece.sequence % len(KINDS)] and 0 < piece.start < PROMPT)
        assert ints("first_positions")[index] == piece.start - lead
        assert ints("starts")[index] == tokens
        everything = [*state.tokens.view().tolist(), *state.drawn]
        size = piece.length + lead
        assert ints("given_ids")[tokens : tokens + size].tolist() == everything[piece.start - lead : end]
        for place in range(piece.scored + piece.sample):
            draws = place == piece.scored
            parameters = sampling_row(table_record(piece.sequence).sampling, state.top, VOCAB)
            expected = np.frombuffer(parameters, ROW).copy()[0]
            if draws:
                expected["position"] = end
                edits += check_edits(host, row, edits, state, end)
                if state.mask is not None:
                    assert ints("mask_slots")[row] == masks
                    assert ints("masks")[masks].tobytes() == bytes(range(16))
                    masks += 1
            else:
                expected["target"] = everything[piece.start + place + 1]
                expected["top"], expected["position"] = state.prompt_top, records[row]["position"]
                assert ints("edit_starts")[row : row + 2].tolist() == [edits, edits]
            if not draws or state.mask is None:
                assert ints("mask_slots")[row] == NO_SLOT
            assert records[row] == expected
            assert ints("row_tokens")[row] == tokens + (size - 1 if draws else lead + place)
            assert ints("row_slots")[row] == (state.slot if draws else NO_SLOT)
            assert ints("seen_slots")[row] == (state.slot if draws and state.seen is not None else NO_SLOT)
            row += 1
        tokens += size
    count = len(pieces)
    assert set(ints("starts")[count : shape.chunks + 1].tolist()) == {tokens}
    for name in ("chunk_slots", "first_positions"):
        assert not ints(name)[count : shape.chunks].any()
    for name in ("row_slots", "seen_slots"):
        assert np.all(ints(name)[row : shape.rows] == NO_SLOT)
    assert np.all(ints("mask_slots")[row : shape.rows] == NO_SLOT)
    assert np.all(ints("edit_starts")[row : shape.rows + 1] == edits)
    assert not records["target"][row : shape.rows].any()
    assert np.all(records["top"][row : shape.rows] == -1)
    assert not ints("row_tokens")[row : shape.rows].any()


def check_edits(host: HostBuffers, row: int, first: int, state: DeviceSequence, end: int) -> int:
    expected = dict(zip(state.bias_tokens.tolist(), state.bias_values.tolist(), strict=True))
    if end - state.prompt_tokens < state.min_tokens:
        expected |= dict.fromkeys(state.banned.tolist(), -np.inf)
    expected |= {token: -np.inf for before, token in state.bad_words if not before}
    last = first + len(expected)
    assert host.ints("edit_starts")[row : row + 2].tolist() == [first, last]
    values: npt.NDArray[np.float32] = host.packet["edit_values"][first:last].numpy()
    tokens = host.ints("edit_tokens")[first:last]
    assert dict(zip(tokens.tolist(), values.tolist(), strict=True)) == expected
    return len(expected)


def shape_of(pieces: Pieces) -> PassShape:
    rows = sum(piece.scored + piece.sample for piece in pieces)
    return BUCKETS.shape([piece.lead + piece.length for piece in pieces], rows)


def test_a_packet_says_what_its_pieces_say() -> None:
    """And a packet with one number changed does not: each of these, where the step uses it."""
    host, table = HostBuffers(RehearsalDevice(), SIZES, VOCAB), table_of_all_kinds()
    kinds = set[object]()
    for seed in range(60):
        pieces = drawn_pieces(table, seed)
        shape = shape_of(pieces)
        edits, masks, asked = host.fill(shape, pieces)
        host.fill_masks(pieces)
        check_fill(host, shape, pieces)
        rows = sum(piece.scored + piece.sample for piece in pieces)
        records = host.packet["sampling"].numpy().reshape(-1).view(ROW)
        assert edits == host.ints("edit_starts")[rows]
        assert asked == bool(np.any(records["top"][:rows] >= 0))
        kinds |= {
            shape.decode,
            (asked,),
            (edits > 0, "edits"),
            (masks > 0, "masks"),
            *((piece.scored > 0, "lead", piece.lead) for piece in pieces),
        }
        for name in (*CHUNK_FIELDS, *(ROW_FIELDS if rows else ())):
            array = host.ints(name).reshape(-1)
            array[0] += 1
            with pytest.raises(AssertionError):
                check_fill(host, shape, pieces)
            array[0] -= 1
    assert kinds >= {True, False, (True,), (False,), (True, "edits"), (False, "edits")}
    assert kinds >= {(True, "masks"), (False, "masks")}
    assert kinds >= {(True, "lead", 0), (True, "lead", 1)}
    shape = BUCKETS.decoding(strict=False)[0]
    assert host.fill(shape, []) == (0, 0, False)
    check_fill(host, shape, [])


class Bench(NamedTuple):
    """A packet and what it works on, without a model."""

    device: RehearsalDevice
    buffers: Arena
    packet: Packet
    host: HostBuffers

    @classmethod
    def make(cls) -> Bench:
        device, layout = RehearsalDevice(), Layout()
        for name, size in (("ids", 96), ("positions", 96), ("slots", 96), ("lengths", 12), ("drawn", 40)):
            layout.add(name, torch.int32, size)
        layout.add("block_tables", torch.int32, 12, WIDTH)
        layout.add("slot_rows", torch.int32, 36, 1 + WIDTH)
        buffers = Arena(device, layout)
        cache = device.allocate(64 * 4).view(1, 1, 64, 4)
        packet = Packet(device, buffers, SIZES, VOCAB)
        packet.take_cache([cache])
        return cls(device, buffers, packet, HostBuffers(device, SIZES, VOCAB))

    def numbers(self, name: str) -> npt.NDArray[np.int32]:
        self.device.synchronize()
        found: npt.NDArray[np.int32] = self.buffers[name].numpy()
        return found


def test_pieces_of_one_sequence_follow_each_other_in_a_pass() -> None:
    """A tail recomputed token by token, beside a decoded token: one slot, one table, and one draw that is kept."""
    bench, table = Bench.make(), table_of_all_kinds()
    last = PROMPT + 1
    chunks = [Chunk(sequence=0, start=at, count=1, sample=at == last) for at in range(last - 2, last + 1)]
    chunks.insert(1, Chunk(sequence=1, start=last - 1, count=2, sample=True))  # starts one earlier than it need
    pieces = [table.piece(chunk) for chunk in chunks]
    table.give_slots(pieces)
    shape, (slot, other) = shape_of(pieces), (pieces[0].state.slot, pieces[1].state.slot)
    bench.packet.write(bench.host, bench.packet.slot_rows, *table_updates(pieces, WIDTH))
    drawn_last = np.array([slot, other], np.int32) * (1 + WIDTH)
    bench.packet.write(bench.host, bench.packet.slot_rows, drawn_last, np.array([77, 88], np.int32))
    bench.packet.send(bench.host, shape, bench.host.fill(shape, pieces))
    bench.device.run(lambda: bench.packet.prepare(shape))
    assert bench.numbers("ids")[:5].tolist() == [prompt_of(PROMPT, 0)[-1], 30 + other, 88, 30 + slot, 77]
    assert bench.numbers("positions")[:5].tolist() == [last - 2, last - 1, last, last - 1, last]
    assert bench.numbers("slots")[:6].tolist() == [last - 2, 64 + last - 1, 64 + last, last - 1, last, -1]
    assert bench.numbers("lengths").tolist() == [last - 1, last + 1, last, last + 1] + [0] * 8
    assert bench.numbers("block_tables")[:4, 0].tolist() == [0, 1, 0, 0]
    bench.buffers["drawn"][:2] = torch.tensor([5, 6], dtype=torch.int32)
    bench.device.run(lambda: bench.packet.keep_drawn(shape))
    assert bench.numbers("slot_rows")[[slot, other], 0].tolist() == [6, 5]


def test_lists_of_a_step_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when their room is used up: 12 tables of 3 blocks and counts of 120 tokens, 156 entries."""
    bench, waits = Bench.make(), list[int]()
    record_event = bench.device.record

    def counted() -> DeviceEvent:
        waits.append(bench.host.lists_sent)
        return record_event()

    monkeypatch.setattr(bench.device, "record", counted)
    rng, expected = np.random.default_rng(0), np.zeros(36 * (1 + WIDTH), np.int32)
    for count in (60, 60, 36, 100, 1, 156):
        places = rng.permutation(len(expected)).astype(np.int32)[:count]
        places = np.concatenate([places, np.full(max(0, count - len(places)), places[0], np.int32)])
        values = rng.integers(1, 1000, count, dtype=np.int32)
        values[len(expected) :] = values[0]  # a place twice: the same value
        bench.packet.write(bench.host, bench.packet.slot_rows, places, values)
        expected[places] = values
    assert waits == [156, 101]
    assert bench.numbers("slot_rows").flatten().tolist() == expected.tolist()
    with pytest.raises(ValueError, match="157 entries to write at once, there is room for 156"):
        bench.packet.write(bench.host, bench.packet.slot_rows, *np.zeros((2, 157), np.int32))
    with pytest.raises(ValueError, match="37 blocks to copy in one step, there is room for 36"):
        bench.packet.copy_blocks(bench.host, *np.zeros((2, 37), np.int32))


def scored_token(token: int, logprob: float, *top: int) -> TokenLogprob:
    return TokenLogprob(token_id=token, logprob=logprob, top=tuple(TopLogprob(other, -other) for other in top))


def test_answers_reach_their_sequences() -> None:
    host, table = HostBuffers(RehearsalDevice(), SIZES, VOCAB), table_of_all_kinds()
    decoded = [table.piece(Chunk(sequence=n, start=PROMPT + 1, count=1, sample=True)) for n in (0, 1, 5)]
    scored = table.piece(Chunk(sequence=4, start=3, count=2, prompt_logprobs=True))
    for state in [piece.state for piece in decoded]:
        state.drawn.append(UNREAD)
    pieces = [decoded[0], decoded[1], scored, decoded[2]]
    sampled = host.sampled
    sampled.tokens[:5], sampled.status[:5] = [50, 51, 52, 53, 54], 0
    sampled.logprobs[:5] = [-1, -2, -3, -4, -5]
    sampled.top_tokens[:5] = np.arange(5 * MAX_TOP).reshape(5, MAX_TOP)
    sampled.top_logprobs[:5] = -sampled.top_tokens[:5]
    expected = [
        Row(sequence=0, tokens=(50,)),
        Row(sequence=1, tokens=(51,), logprobs=(scored_token(51, -2.0, 20, 21, 22),)),
        Row(
            sequence=4,
            prompt_logprobs=(
                scored_token(52, -3.0, 40, 41),
                scored_token(53, -4.0, 60, 61),
            ),
        ),
        Row(sequence=5, tokens=(54,)),
    ]
    assert collect(pieces, sampled) == expected
    assert [state.drawn[-1] for state in [piece.state for piece in decoded]] == [50, 51, 54]
    # A row that is not finite fails its own piece, and the next step finds a token all the same.
    sampled.status[[0, 3]] = NOT_FINITE
    failed = {number: Row(sequence=number, error="nonfinite_logits") for number in (0, 4)}
    assert collect(pieces, sampled) == [failed.get(result.sequence, result) for result in expected]
    assert [state.drawn[-1] for state in [piece.state for piece in decoded]] == [PLACEHOLDER, 51, 54]
    assert collect(list[Piece[DeviceSequence]](), sampled) == []
