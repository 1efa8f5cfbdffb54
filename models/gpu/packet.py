"""A step's input from the host and its results: a packet in pinned memory, and its copy on the device.

Everything a step needs is at a fixed address, so graphs can read it; only the used parts are copied. A packet's front
is sent with every step. After it come lists that few steps have: entries of block tables, blocks to copy, logit biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from ...kernels.sampling.rows import MAX_TOP, Int32Array, Sampled
from ...kernels.step_inputs.gpu import copy_blocks, keep_drawn, prepare, scatter
from .adapters import NO_ADAPTER
from .arena import Arena, Layout
from .buckets import GpuSizes, PassShape
from .device import Device
from .sampler import Filled, LogitRows, SamplingPart, add_edits, add_sampling_rows
from .sequences import NO_SLOT, Pieces


def packet_layout(sizes: GpuSizes, vocab_size: int) -> Layout:
    buckets, width = sizes.buckets, sizes.table_width
    layout, chunks, rows = Layout(), buckets.chunks, buckets.rows[-1]
    for name in ("chunk_slots", "first_positions"):
        layout.add(name, torch.int32, chunks)
    layout.add("starts", torch.int32, chunks + 1)
    for name in ("row_tokens", "row_slots"):
        layout.add(name, torch.int32, rows)
    add_sampling_rows(layout, rows)
    layout.add("given_ids", torch.int32, buckets.tokens[-1])
    if sizes.adapters.count:
        layout.add("adapters", torch.int32, buckets.tokens[-1])
    # Every sequence of a step may bring its whole table, and one of them counts of every token without waiting for
    # the device; as a rule a sequence brings far less of both, so this is room for dozens.
    for name in ("places", "values"):
        layout.add(name, torch.int32, chunks * width + vocab_size)
    for name in ("sources", "targets"):
        layout.add(name, torch.int32, chunks * width)
    add_edits(layout, chunks, vocab_size)
    return layout


def result_layout(rows: int) -> Layout:
    """Ids and status of every row are returned with every step, the rest only if a row asked for it."""
    layout = Layout()
    layout.add("drawn", torch.int32, rows)
    layout.add("status", torch.uint8, rows)
    layout.add("logprobs", torch.float32, rows)
    layout.add("ranks", torch.int32, rows)
    layout.add("top_tokens", torch.int32, rows, MAX_TOP)
    layout.add("top_logprobs", torch.float32, rows, MAX_TOP)
    return layout


class HostBuffers:
    """One pinned packet and one pinned result. A step owns both until its answer is read."""

    def __init__(self, device: Device, sizes: GpuSizes, vocab_size: int) -> None:
        self.packet = Arena(device, packet_layout(sizes, vocab_size), pinned=True)
        self.result = Arena(device, result_layout(sizes.buckets.rows[-1]), pinned=True)
        self.lists_sent = 0  # entries of `places` and `values` in this step: the device may not have read them yet
        self._adapters = self.ints("adapters") if sizes.adapters.count else None
        self._sampling = SamplingPart(self.packet)
        # Making an array from a tensor takes as long as filling 256 entries, so all are made once.
        self._chunk_slots, self._first_positions, self._starts, self._row_tokens, self._row_slots, self._given = map(
            self.ints, ("chunk_slots", "first_positions", "starts", "row_tokens", "row_slots", "given_ids")
        )
        self.sampled = Sampled(
            tokens=self.result["drawn"].numpy(),
            status=self.result["status"].numpy(),
            logprobs=self.result["logprobs"].numpy(),
            ranks=self.result["ranks"].numpy(),
            top_tokens=self.result["top_tokens"].numpy(),
            top_logprobs=self.result["top_logprobs"].numpy(),
        )

    def ints(self, name: str) -> Int32Array:
        array: Int32Array = self.packet[name].numpy()
        return array

    def fill(self, shape: PassShape, pieces: Pieces) -> Filled:
        """Everything of a pass but its masks, padded to its shape.

        Padding chunks are empty, padding rows have no slot. Several pieces may be of one sequence: they share its slot.
        """
        count, starts = len(pieces), self._starts
        self._chunk_slots[:count] = [piece.state.slot for piece in pieces]
        leads = [piece.lead for piece in pieces]
        firsts = [piece.start - lead for piece, lead in zip(pieces, leads, strict=True)]
        lengths = [piece.length + lead for piece, lead in zip(pieces, leads, strict=True)]
        self._first_positions[:count] = firsts
        starts[0] = 0
        np.cumsum(lengths, out=starts[1 : count + 1])
        starts[count + 1 : shape.chunks + 1] = starts[count]
        self._chunk_slots[count : shape.chunks] = 0
        self._first_positions[count : shape.chunks] = 0
        given, place = self._given, 0
        for piece, first, length in zip(pieces, firsts, lengths, strict=True):
            if length == 1:
                given[place] = piece.state.id_at(first)
            else:
                given[place : place + length] = piece.state.ids(first, length)
            place += length
        if shape.adapted:
            assert self._adapters is not None, "an adapter, and no room for one"
            numbers = [NO_ADAPTER if piece.state.adapter is None else piece.state.adapter.place for piece in pieces]
            self._adapters[:place] = np.repeat(np.array(numbers, np.int32), np.array(lengths, np.int64))
            self._adapters[place : shape.tokens] = NO_ADAPTER
        rows = LogitRows.of(pieces, starts[: count + 1], np.array(leads, np.int64))
        slots = np.where(rows.draws, self._chunk_slots[rows.owners], NO_SLOT)
        wanted = len(rows.owners)
        self._row_tokens[:wanted], self._row_slots[:wanted] = rows.tokens, slots
        self._row_tokens[wanted : shape.rows], self._row_slots[wanted : shape.rows] = 0, NO_SLOT
        return self._sampling.fill(shape.rows, rows, slots, pieces)

    def fill_masks(self, pieces: Pieces) -> None:
        """What the next tokens may be. Guides compute it here, while the device runs the layers."""
        self._sampling.fill_masks(pieces)


class Packet:
    """The packet on the device, and the launches that read it."""

    def __init__(
        self,
        device: Device,
        buffers: Arena,
        sizes: GpuSizes,
        vocab_size: int,
    ) -> None:
        self._device, self._buffers = device, buffers
        self.arena = Arena(device, packet_layout(sizes, vocab_size))
        self.slot_rows = buffers["slot_rows"]
        self._cache_words = list[torch.Tensor]()

    def take_cache(self, cache: Sequence[torch.Tensor]) -> None:
        """The KV cache whose blocks are copied: [layers, 2, blocks, …] each, keys and values, and scales if any."""
        self._cache_words = [part.flatten(0, 1).flatten(2).view(torch.int32) for part in cache]

    def send(self, host: HostBuffers, shape: PassShape, filled: Filled) -> None:
        """The front, up to the last id of the shape; the rows' adapters, the list of edits, if any."""
        given = self.arena["given_ids"]
        size = given.data_ptr() - self.arena.memory.data_ptr() + 4 * shape.tokens
        self._device.upload(self.arena.memory[:size], host.packet.memory[:size])
        for name, used in (
            ("adapters", shape.tokens if shape.adapted else 0),
            ("edit_tokens", filled.edits),
            ("edit_values", filled.edits),
        ):
            if used:
                self._device.upload(self.arena[name][:used], host.packet[name][:used])

    def send_masks(self, host: HostBuffers, filled: Filled) -> None:
        self._device.upload(self.arena["masks"][: filled.masks], host.packet["masks"][: filled.masks])

    def write(self, host: HostBuffers, target: torch.Tensor, places: Int32Array, values: Int32Array) -> None:
        """target.flatten()[places] = values, before the pass."""
        count, room = len(places), len(self.arena["places"])
        if count > room:
            raise ValueError(f"{count} entries to write at once, there is room for {room}")
        if host.lists_sent + count > room:  # very many sequences with penalties join at once
            self._device.record().wait()
            host.lists_sent = 0
        # Appended on the host, where the device may still be reading, and always at the front on the device.
        first = host.lists_sent
        host.lists_sent = first + count
        sent_values = self._send_list(host, "values", values, first)
        sent_places = self._send_list(host, "places", places, first)
        self._device.run(partial(scatter, sent_values, sent_places, target))

    def copy_blocks(self, host: HostBuffers, sources: Int32Array, targets: Int32Array) -> None:
        count, room = len(sources), len(self.arena["sources"])
        if count > room:
            raise ValueError(f"{count} blocks to copy in one step, there is room for {room}")
        sent = self._send_list(host, "sources", sources, 0), self._send_list(host, "targets", targets, 0)
        for words in self._cache_words:
            self._device.run(partial(copy_blocks, *sent, words))

    def prepare(self, shape: PassShape) -> None:
        """The first launch of a pass: ids, positions, slots, lengths and block tables from the packet."""
        packet, buffers, chunks, tokens = self.arena, self._buffers, shape.chunks, shape.tokens
        prepare(
            packet["chunk_slots"][:chunks], packet["first_positions"][:chunks], packet["starts"][: chunks + 1],
            packet["given_ids"][:tokens], self.slot_rows, ids=buffers["ids"][:tokens],
            positions=buffers["positions"][:tokens], slots=buffers["slots"][:tokens],
            lengths=buffers["lengths"][:chunks], block_tables=buffers["block_tables"][:chunks],
        )  # fmt: skip

    def keep_drawn(self, shape: PassShape) -> None:
        """The last launch of a pass: stores the drawn tokens for the next step."""
        keep_drawn(self._buffers["drawn"][: shape.rows], self.arena["row_slots"][: shape.rows], self.slot_rows)

    def _send_list(self, host: HostBuffers, name: str, array: Int32Array, first: int) -> torch.Tensor:
        """Through the host's list, from entry `first` on, to the front of the device's."""
        part = slice(first, first + len(array))
        host.ints(name)[part] = array
        target = self.arena[name][: len(array)]
        self._device.upload(target, host.packet[name][part])
        return target
