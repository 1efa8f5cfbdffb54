"""A model on a device, ready to be stepped: weights, cache, buffers, and graphs for every shape.

Everything is allocated and compiled here. A pass uploads the packet, runs one graph (two for a mixed step: layers and
head), and downloads the drawn tokens.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..checkpoint.rope import rope_tables
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights
from .adapters import DeviceAdapters
from .arena import Arena, Layout
from .buckets import GpuSizes, PassShape
from .cache import cache_layout, cache_parts, layer_caches
from .decoder import Decoder, decoder_layout
from .device import Device, DeviceEvent, Graph
from .packet import HostBuffers, Packet, result_layout
from .sampler import DeviceSampler, sampler_layout, seen_counts
from .sequences import DeviceSequence, Pieces, table_updates
from .weights import fill_weights, place_weights


class GpuModel:
    """Used by one thread."""

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DecoderWeights | None,  # None: their room stays empty, where launches are only recorded
        sizes: GpuSizes,
        report: ReportProgress = ignore_progress,
    ) -> None:
        self.device, self.spec, self.sizes, self.buckets = device, spec, sizes, sizes.buckets
        self._buffers = Arena(device, buffer_layout(device, spec, sizes))
        rotation = self._buffers["rotation"]
        room, placed = place_weights(device, spec, sizes.quantize)
        if weights is not None:
            device.load(rotation, torch.from_numpy(rope_tables(spec.rope, spec.head_dim, sizes.max_model_len)))
            fill_weights(device, room, weights, sizes.quantize, report)
        cache = Arena(device, cache_layout(spec, sizes.num_blocks, sizes.kv_cache_dtype))
        self.caches = layer_caches(cache)
        self.adapters = DeviceAdapters(device, spec, sizes.adapters) if sizes.adapters.count else None
        self.packet = Packet(device, self._buffers, cache_parts(cache), sizes, spec.vocab_size)
        packet = self.packet.arena
        self._decoder = Decoder(
            device, spec, placed, rotation, self.caches, sizes.kv_cache_dtype, self._buffers, packet, self.adapters
        )
        self._sampler = DeviceSampler(device, self._buffers, packet)
        self._passes: dict[PassShape, Graph] = {}  # of decode shapes
        self._layers: dict[tuple[int, bool, bool], Graph] = {}  # of mixed shapes, by tokens, strictness, adapters
        self._heads: dict[tuple[int, bool], Graph] = {}  # of mixed shapes, by rows and strictness
        self._prepare_graphs(report)

    def make_host_buffers(self) -> HostBuffers:
        return HostBuffers(self.device, self.sizes, self.spec.vocab_size)

    def install(self, host: HostBuffers, pieces: Pieces) -> None:
        """Bring the slots of these sequences up to date."""
        host.lists_sent = 0
        places, values = table_updates(pieces, self.sizes.table_width)
        if len(places):
            self.packet.write(host, self.packet.slot_rows, places, values)
        for piece in pieces:
            state = piece.state
            if state.fresh and state.seen is not None:
                self._install_seen(host, state)
            state.fresh = False

    def _install_seen(self, host: HostBuffers, state: DeviceSequence) -> None:
        seen, vocab = self._buffers["seen"], self.spec.vocab_size
        tokens, counts = seen_counts(state)
        self.device.run(seen[state.slot].zero_)
        self.packet.write(host, seen, state.slot * vocab + tokens, counts)

    def decode_graph(self, size: int, *, adapted: bool = False) -> Graph:
        """The graph of the decode shape with this many rows, for benchmarks."""
        return self._passes[PassShape(size, size, size, True, adapted=adapted)]

    def launch(self, host: HostBuffers, shape: PassShape, pieces: Pieces) -> DeviceEvent:
        """One pass over these pieces; after the event, the host buffers hold its results."""
        filled = host.fill(shape, pieces)
        self.packet.send(host, shape, filled)
        if shape.decode:
            self._passes[shape].replay()
        else:
            self._layers[_layers_of(shape)].replay()
            self._heads[shape.rows, shape.strict].replay()
        self._download(host, "top_logprobs" if filled.asks else "status")
        return self.device.record()

    def _run_pass(self, shape: PassShape) -> None:
        self._run_layers(shape)
        self._run_head(shape)

    def _run_layers(self, shape: PassShape) -> None:
        self.packet.prepare(shape)
        self._decoder.layers(shape)

    def _run_head(self, shape: PassShape) -> None:
        self._sampler.sample(self._decoder.head(shape.rows, strict=shape.strict))
        self.packet.keep_drawn(shape)

    def _download(self, host: HostBuffers, last: str) -> None:
        """The results up to the field `last`, which are contiguous."""
        start, field = self._buffers["drawn"], self._buffers[last]
        size = field.data_ptr() + field.nbytes - start.data_ptr()
        first = start.data_ptr() - self._buffers.memory.data_ptr()
        self.device.download(host.result.memory[:size], self._buffers.memory[first : first + size])

    def _prepare_graphs(self, report: ReportProgress) -> None:
        """Run every shape once with only padding, which compiles its kernels, then capture them."""
        host, shapes, device = self.make_host_buffers(), self.buckets.every(), self.device
        zero = np.zeros(1, np.int32)
        # Slot 0 and block 0 have no owner yet.
        self.packet.write(host, self.packet.slot_rows, zero, zero)
        self.packet.copy_blocks(host, zero, zero)
        device.run(self._buffers["seen"][0].zero_)
        self.packet.write(host, self._buffers["seen"], zero, zero)
        for done, shape in enumerate(shapes):
            report(LoadProgress(stage="compiling kernels", done=done, total=len(shapes)))
            self.packet.send(host, shape, host.fill(shape, []))
            device.run(partial(self._run_pass, shape))
            device.record().wait()
        for done, shape in enumerate(shapes):
            report(LoadProgress(stage="capturing graphs", done=done, total=len(shapes)))
            if shape.decode:
                self._passes[shape] = device.capture(partial(self._run_pass, shape))
                continue
            if _layers_of(shape) not in self._layers:
                self._layers[_layers_of(shape)] = device.capture(partial(self._run_layers, shape))
            if (shape.rows, shape.strict) not in self._heads:
                self._heads[shape.rows, shape.strict] = device.capture(partial(self._run_head, shape))
        report(LoadProgress(stage="capturing graphs", done=len(shapes), total=len(shapes)))


def _layers_of(shape: PassShape) -> tuple[int, bool, bool]:
    return shape.tokens, shape.strict, shape.adapted


def buffer_layout(device: Device, spec: ModelSpec, sizes: GpuSizes) -> Layout:
    """All working memory, results included."""
    layout, rows = decoder_layout(spec, sizes, device), sizes.buckets.rows[-1]
    layout.add("rotation", torch.float32, sizes.max_model_len, spec.head_dim)
    layout.add("slot_rows", torch.int32, sizes.slots, 1 + sizes.table_width)
    layout.extend(sampler_layout(spec.vocab_size, rows, sizes.slots, device.capability))
    layout.extend(result_layout(rows))
    return layout
