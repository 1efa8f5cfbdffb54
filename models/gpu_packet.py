"""What the host sends for a step, and what comes back: a packet in pinned memory, and its twin on the device.

Everything a step needs is at a fixed place, so graphs read it; only what a step uses is copied. The front of a packet
goes with every step. Behind it lie lists that few steps have: entries of block tables, blocks to copy, logit biases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.sampling.rows import MAX_TOP, Int32Array
from ..kernels.step_inputs.gpu_launch import copy_blocks, keep_drawn, prepare, scatter
from .device import Device
from .gpu_arena import Arena, Layout
from .gpu_buckets import Buckets, Shape
from .gpu_sampling_rows import add_edits, add_sampling_rows, fill_sampling
from .gpu_sequences import NO_SLOT, DeviceSequence
from .rows import Piece


def packet_layout(buckets: Buckets, width: int, vocab_size: int) -> Layout:
    layout, chunks, rows = Layout(), buckets.chunks, buckets.rows[-1]
    for name in ("chunk_slots", "first_positions"):
        layout.add(name, torch.int32, chunks)
    layout.add("starts", torch.int32, chunks + 1)
    for name in ("row_tokens", "row_slots"):
        layout.add(name, torch.int32, rows)
    add_sampling_rows(layout, rows)
    layout.add("given_ids", torch.int32, buckets.tokens[-1])
    # Every sequence of a step may bring its whole table; counts of seen tokens come one sequence at a time.
    for name in ("places", "values"):
        layout.add(name, torch.int32, max(chunks * width, vocab_size))
    for name in ("sources", "targets"):
        layout.add(name, torch.int32, chunks * width)
    add_edits(layout, chunks)
    return layout


def result_layout(rows: int) -> Layout:
    """Ids and status of every row come back with every step, the rest when a row asked for it."""
    layout = Layout()
    layout.add("drawn", torch.int32, rows)
    layout.add("status", torch.uint8, rows)
    layout.add("logprobs", torch.float32, rows)
    layout.add("top_tokens", torch.int32, rows, MAX_TOP)
    layout.add("top_logprobs", torch.float32, rows, MAX_TOP)
    return layout


class Exchange:
    """One pinned packet and one pinned result: a step that is under way owns it until its answer was read."""

    def __init__(self, device: Device, buckets: Buckets, width: int, vocab_size: int) -> None:
        self.packet = Arena(device, packet_layout(buckets, width, vocab_size), pinned=True)
        self.result = Arena(device, result_layout(buckets.rows[-1]), pinned=True)
        self.lists_sent = False  # in this step: the device may not have read them yet

    def ints(self, name: str) -> npt.NDArray[np.int32]:
        array: npt.NDArray[np.int32] = self.packet[name].numpy()
        return array

    def fill(self, shape: Shape, pieces: Sequence[Piece]) -> tuple[int, bool]:
        """Everything of a pass, padded to its shape; (entries in the edit lists, whether log probabilities are asked).

        Padding chunks are empty, padding rows have no slot.
        """
        slots, positions, starts = self.ints("chunk_slots"), self.ints("first_positions"), self.ints("starts")
        given, first = self.ints("given_ids"), 0
        for index, piece in enumerate(pieces):
            state = piece.state
            assert isinstance(state, DeviceSequence)
            slots[index], positions[index], starts[index] = state.slot, piece.start, first
            given[first : first + piece.length] = state.ids(piece.start, piece.length)
            first += piece.length
        count = len(pieces)
        slots[count : shape.chunks] = 0
        positions[count : shape.chunks] = 0
        starts[count : shape.chunks + 1] = first
        self._fill_rows(shape, pieces)
        return fill_sampling(self.packet, shape.rows, pieces)

    def _fill_rows(self, shape: Shape, pieces: Sequence[Piece]) -> None:
        tokens, slots = self.ints("row_tokens"), self.ints("row_slots")
        row = first = 0
        for piece in pieces:
            if piece.scored:
                tokens[row : row + piece.scored] = np.arange(first, first + piece.scored)
                slots[row : row + piece.scored] = NO_SLOT
                row += piece.scored
            first += piece.length
            if piece.sample:
                tokens[row], slots[row] = first - 1, piece.state.slot
                row += 1
        tokens[row : shape.rows] = 0
        slots[row : shape.rows] = NO_SLOT


class Packet:
    """The packet on the device, and the launches that read it."""

    def __init__(
        self, device: Device, buffers: Arena, cache: torch.Tensor, buckets: Buckets, width: int, vocab_size: int
    ) -> None:
        self._device, self._buffers = device, buffers
        self.arena = Arena(device, packet_layout(buckets, width, vocab_size))
        self.slot_rows = buffers["slot_rows"]
        layers, parts, blocks = cache.shape[:3]
        self._cache_words = cache.view(layers * parts, blocks, -1).view(torch.int32)

    def send(self, exchange: Exchange, shape: Shape, edits: int) -> None:
        """The front, up to the last id of the shape, and the list of edits."""
        given = self.arena["given_ids"]
        size = given.data_ptr() - self.arena.memory.data_ptr() + 4 * shape.tokens
        self._device.upload(self.arena.memory[:size], exchange.packet.memory[:size])
        for name in ("edit_tokens", "edit_values") if edits else ():
            self._device.upload(self.arena[name][:edits], exchange.packet[name][:edits])

    def write(self, exchange: Exchange, target: torch.Tensor, places: Int32Array, values: Int32Array) -> None:
        """target.flatten()[places] = values, before the pass."""
        if exchange.lists_sent:  # rare: a sequence with penalties comes in
            self._device.record().wait()
        exchange.lists_sent = True
        sent = [self._send_list(exchange, name, array) for name, array in (("places", places), ("values", values))]
        self._device.run(lambda: scatter(sent[1], sent[0], target))

    def copy_blocks(self, exchange: Exchange, sources: Int32Array, targets: Int32Array) -> None:
        sent = [self._send_list(exchange, name, array) for name, array in (("sources", sources), ("targets", targets))]
        self._device.run(lambda: copy_blocks(sent[0], sent[1], self._cache_words))

    def prepare(self, shape: Shape) -> None:
        """The first launch of a pass: ids, positions, slots, lengths and block tables from the packet."""
        packet, buffers, chunks, tokens = self.arena, self._buffers, shape.chunks, shape.tokens
        prepare(
            packet["chunk_slots"][:chunks], packet["first_positions"][:chunks], packet["starts"][: chunks + 1],
            packet["given_ids"][:tokens], self.slot_rows, ids=buffers["ids"][:tokens],
            positions=buffers["positions"][:tokens], slots=buffers["slots"][:tokens],
            lengths=buffers["lengths"][:chunks], block_tables=buffers["block_tables"][:chunks],
        )  # fmt: skip

    def keep_drawn(self, shape: Shape) -> None:
        """The last launch of a pass: what was drawn is what the next step reads."""
        keep_drawn(self._buffers["drawn"][: shape.rows], self.arena["row_slots"][: shape.rows], self.slot_rows)

    def _send_list(self, exchange: Exchange, name: str, array: Int32Array) -> torch.Tensor:
        count, host = len(array), exchange.packet[name]
        if count > len(host):
            raise ValueError(f"{name}: {count} in one step, there is room for {len(host)}")
        exchange.ints(name)[:count] = array
        target = self.arena[name][:count]
        self._device.upload(target, host[:count])
        return target
