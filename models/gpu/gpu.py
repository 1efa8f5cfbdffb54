"""A model on a device, ready to be stepped: weights, cache, buffers, and graphs for every shape.

Everything is allocated and compiled here. A pass is: the packet up, one graph (for a mixed step two, the layers' and
the head's), the drawn tokens down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights
from ..rope import rope_tables
from ..steps.rows import Piece
from .arena import Arena, Layout
from .buckets import Buckets, Shape
from .cache import cache_layout, cache_parts, layer_caches
from .decoder import Decoder, decoder_layout
from .device import Device, Event, Graph
from .packet import Exchange, Packet, packet_layout, result_layout
from .sampler import DeviceSampler, sampler_layout
from .sampling_rows import seen_counts
from .sequences import DeviceSequence, table_updates
from .weights import load_weights_to

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
        kv_cache_dtype: str = "bfloat16",
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        buckets: Buckets,
        on_progress: Progress,
    ) -> None:
        self.device, self.spec, self.buckets = device, spec, buckets
        self.block_size, self.max_model_len = block_size, max_model_len
        self.width, self.slots = table_width(max_model_len, block_size), slots_for(buckets)
        self._buffers = Arena(
            device, buffer_layout(device, spec, buckets, quantize, kv_cache_dtype, max_model_len, block_size)
        )
        rotation = self._buffers["rotation"]
        device.load(rotation, torch.from_numpy(rope_tables(spec, max_model_len)))
        loading = partial(on_progress, "loading weights")
        placed = load_weights_to(device, spec, weights, quantize, loading)
        cache = Arena(device, cache_layout(spec, num_blocks, block_size, kv_cache_dtype))
        self.caches = layer_caches(cache)
        self._decoder = Decoder(device, spec, placed, rotation, self.caches, kv_cache_dtype, self._buffers)
        self.packet = Packet(device, self._buffers, cache_parts(cache), buckets, self.width, spec.vocab_size)
        self._sampler = DeviceSampler(device, self._buffers, self.packet.arena)
        self._passes: dict[tuple[int, bool], Graph] = {}  # of decode shapes, by tokens and strictness
        self._layers: dict[tuple[int, bool], Graph] = {}  # of mixed shapes, by tokens and strictness
        self._heads: dict[tuple[int, bool], Graph] = {}  # of mixed shapes, by rows and strictness
        self._prepare_graphs(on_progress)

    def make_exchange(self) -> Exchange:
        return Exchange(self.device, self.buckets, self.width, self.spec.vocab_size)

    def install(self, exchange: Exchange, pieces: Sequence[Piece]) -> None:
        """Bring the slots of these sequences up to date."""
        exchange.lists_sent = 0
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

    def decode_graph(self, size: int, *, strict: bool = False) -> Graph:
        """That of the decode shape with so many rows, as a benchmark replays it."""
        return self._passes[size, strict]

    def launch(self, exchange: Exchange, shape: Shape, pieces: Sequence[Piece]) -> Event:
        """One pass over these pieces; behind the event the exchange holds its answer."""
        edits, asked = exchange.fill(shape, pieces)
        self.packet.send(exchange, shape, edits)
        if shape.decode:
            self._passes[shape.tokens, shape.strict].replay()
        else:
            self._layers[shape.tokens, shape.strict].replay()
            self._heads[shape.rows, shape.strict].replay()
        self._download(exchange, "top_logprobs" if asked else "status")
        return self.device.record()

    def _run_pass(self, shape: Shape) -> None:
        self._run_layers(shape)
        self._run_head(shape)

    def _run_layers(self, shape: Shape) -> None:
        self.packet.prepare(shape)
        self._decoder.layers(shape, self.packet.arena["starts"][: shape.chunks + 1])

    def _run_head(self, shape: Shape) -> None:
        packet = self.packet
        self._sampler.sample(self._decoder.head(shape.rows, packet.arena["row_tokens"], strict=shape.strict))
        packet.keep_drawn(shape)

    def _download(self, exchange: Exchange, last: str) -> None:
        """The results up to the field `last`, which lie together."""
        start, field = self._buffers["drawn"], self._buffers[last]
        size = field.data_ptr() + field.nbytes - start.data_ptr()
        first = start.data_ptr() - self._buffers.memory.data_ptr()
        self.device.download(exchange.result.memory[:size], self._buffers.memory[first : first + size])

    def _prepare_graphs(self, report: Progress) -> None:
        """Run every shape once on padding alone, which compiles its kernels; then capture them."""
        exchange, shapes, device = self.make_exchange(), self.buckets.every(), self.device
        zero = np.zeros(1, np.int32)
        # Slot 0 has no owner yet, nor has block 0.
        self.packet.write(exchange, self.packet.slot_rows, zero, zero)
        self.packet.copy_blocks(exchange, zero, zero)
        device.run(self._buffers["seen"][0].zero_)
        self.packet.write(exchange, self._buffers["seen"], zero, zero)
        for done, shape in enumerate(shapes):
            report("compiling kernels", done, len(shapes))
            edits, _ = exchange.fill(shape, [])
            self.packet.send(exchange, shape, edits)
            device.run(partial(self._run_pass, shape))
            device.record().wait()
        for done, shape in enumerate(shapes):
            report("capturing graphs", done, len(shapes))
            if shape.decode:
                self._passes[shape.tokens, shape.strict] = device.capture(partial(self._run_pass, shape))
                continue
            if (shape.tokens, shape.strict) not in self._layers:
                self._layers[shape.tokens, shape.strict] = device.capture(partial(self._run_layers, shape))
            if (shape.rows, shape.strict) not in self._heads:
                self._heads[shape.rows, shape.strict] = device.capture(partial(self._run_head, shape))
        report("capturing graphs", len(shapes), len(shapes))


def buffer_layout(
    device: Device,
    spec: ModelSpec,
    buckets: Buckets,
    quantize: str,
    kv_cache_dtype: str,
    max_model_len: int,
    block_size: int,
) -> Layout:
    """All working memory, results included."""
    width = table_width(max_model_len, block_size)
    layout = decoder_layout(spec, buckets, device, width, quantize, kv_cache_dtype)
    layout.add("rotation", torch.float32, max_model_len, spec.head_dim)
    layout.add("slot_rows", torch.int32, slots_for(buckets), 1 + width)
    layout.extend(sampler_layout(spec.vocab_size, buckets.rows[-1], slots_for(buckets), device.capability))
    layout.extend(result_layout(buckets.rows[-1]))
    return layout


def packet_bytes(spec: ModelSpec, buckets: Buckets, max_model_len: int, block_size: int) -> int:
    """Of the packet on the device."""
    return packet_layout(buckets, table_width(max_model_len, block_size), spec.vocab_size).size


def table_width(max_model_len: int, block_size: int) -> int:
    return -(-max_model_len // block_size)


def slots_for(buckets: Buckets) -> int:
    """Those of three steps, two of them in flight, of which the first third have counts of seen tokens."""
    return 3 * buckets.chunks
