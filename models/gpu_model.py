"""A model on a device, ready to be stepped: weights, cache, buffers, and a graph for every decode shape.

Everything is allocated and compiled here. A pass is: the packet up, one graph (or, for a mixed step, the same launches
one by one), the drawn tokens down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from .device import Device, Event, Graph
from .gpu_arena import Arena, Layout
from .gpu_buckets import Buckets, Shape
from .gpu_decoder import DTYPE, Decoder, decoder_layout
from .gpu_packet import Exchange, Packet, packet_layout, result_layout
from .gpu_sampler import DeviceSampler, sampler_layout
from .gpu_sampling_rows import seen_counts
from .gpu_sequences import DeviceSequence, table_updates
from .gpu_weights import load_weights_to
from .rope import rope_tables
from .rows import Piece
from .spec import ModelSpec
from .weights import DecoderWeights

Progress = Callable[[str, int, int], None]  # stage, done, total


class GpuModel:
    """One thread uses it."""

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DecoderWeights,
        *,
        quantize: str,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        buckets: Buckets,
        on_progress: Progress,
    ) -> None:
        self.device, self.spec, self.buckets = device, spec, buckets
        self.block_size, self.max_model_len = block_size, max_model_len
        self.width, self.slots = table_width(max_model_len, block_size), slots_for(buckets)
        self._buffers = Arena(device, buffer_layout(device, spec, buckets, quantize, max_model_len, block_size))
        rotation = self._buffers["rotation"]
        device.load(rotation, torch.from_numpy(rope_tables(spec, max_model_len)))
        loading = partial(on_progress, "loading weights")
        placed = load_weights_to(device, spec, weights, quantize, loading)
        cache = Arena(device, cache_layout(spec, num_blocks, block_size))["cache"]
        self._decoder = Decoder(device, spec, placed, rotation, cache, self._buffers)
        self.packet = Packet(device, self._buffers, cache, buckets, self.width, spec.vocab_size)
        self._sampler = DeviceSampler(device, self._buffers, self.packet.arena)
        self._graphs: dict[Shape, Graph] = {}
        self._prepare_graphs(on_progress)

    def make_exchange(self) -> Exchange:
        return Exchange(self.device, self.buckets, self.width, self.spec.vocab_size)

    def install(self, exchange: Exchange, pieces: Sequence[Piece]) -> None:
        """Bring the slots of these sequences up to date."""
        exchange.lists_sent = False
        places, values = table_updates(pieces, self.width)
        if len(places):
            self.packet.write(exchange, self.packet.slot_rows, places, values)
        for piece in pieces:
            state = piece.state
            assert isinstance(state, DeviceSequence)
            if state.fresh and state.seen is not None:
                self._install_seen(exchange, state)
            state.fresh = False

    def _install_seen(self, exchange: Exchange, state: DeviceSequence) -> None:
        seen, vocab = self._buffers["seen"], self.spec.vocab_size
        tokens, counts = seen_counts(state)
        self.device.run(seen[state.slot].zero_)
        self.packet.write(exchange, seen, state.slot * vocab + tokens, counts)

    def launch(self, exchange: Exchange, shape: Shape, pieces: Sequence[Piece]) -> Event:
        """One pass over these pieces; behind the event the exchange holds its answer."""
        edits, asked = exchange.fill(shape, pieces)
        self.packet.send(exchange, shape, edits)
        graph = self._graphs.get(shape)
        if graph is None:
            self.device.run(partial(self._pass, shape))
        else:
            graph.replay()
        self._download(exchange, "top_logprobs" if asked else "status")
        return self.device.record()

    def _pass(self, shape: Shape) -> None:
        packet = self.packet
        packet.prepare(shape)
        logits = self._decoder.forward(shape, packet.arena["starts"][: shape.chunks + 1], packet.arena["row_tokens"])
        self._sampler.sample(logits)
        packet.keep_drawn(shape)

    def _download(self, exchange: Exchange, last: str) -> None:
        """The results up to the field `last`, which lie together."""
        start, field = self._buffers["drawn"], self._buffers[last]
        size = field.data_ptr() + field.nbytes - start.data_ptr()
        first = start.data_ptr() - self._buffers.memory.data_ptr()
        self.device.download(exchange.result.memory[:size], self._buffers.memory[first : first + size])

    def _prepare_graphs(self, report: Progress) -> None:
        """Run every shape once on padding alone, which compiles its kernels, and capture the decode shapes."""
        exchange, shapes = self.make_exchange(), self.buckets.every()
        zero = np.zeros(1, np.int32)
        self.packet.write(exchange, self.packet.slot_rows, zero, zero)  # slot 0 has no owner yet, nor has block 0
        self.packet.copy_blocks(exchange, zero, zero)
        for done, shape in enumerate(shapes):
            report("compiling kernels", done, len(shapes))
            self.launch(exchange, shape, []).wait()
        graphs = self.buckets.graphs()
        for done, shape in enumerate(graphs):
            report("capturing graphs", done, len(graphs))
            self._graphs[shape] = self.device.capture(partial(self._pass, shape))
        report("capturing graphs", len(graphs), len(graphs))


def buffer_layout(
    device: Device, spec: ModelSpec, buckets: Buckets, quantize: str, max_model_len: int, block_size: int
) -> Layout:
    """All working memory, results included."""
    layout = decoder_layout(spec, buckets, device, table_width(max_model_len, block_size), quantize)
    layout.add("rotation", torch.float32, max_model_len, spec.head_dim)
    layout.add("slot_rows", torch.int32, slots_for(buckets), 1 + table_width(max_model_len, block_size))
    layout.extend(sampler_layout(spec.vocab_size, buckets.rows[-1], slots_for(buckets), device.capability))
    layout.extend(result_layout(buckets.rows[-1]))
    return layout


def packet_bytes(spec: ModelSpec, buckets: Buckets, max_model_len: int, block_size: int) -> int:
    """Of the packet on the device."""
    return packet_layout(buckets, table_width(max_model_len, block_size), spec.vocab_size).size


def cache_layout(spec: ModelSpec, num_blocks: int, block_size: int) -> Layout:
    """Keys and values of every layer."""
    layout = Layout()
    layout.add("cache", DTYPE, spec.num_layers, 2, num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
    return layout


def table_width(max_model_len: int, block_size: int) -> int:
    return -(-max_model_len // block_size)


def slots_for(buckets: Buckets) -> int:
    """Those of three steps, two of them in flight: a sequence whose token is unread keeps its slot."""
    return 3 * buckets.chunks
