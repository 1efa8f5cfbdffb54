"""A model on a device, ready to be stepped: weights, cache, buffers, and graphs for every shape.

Everything is allocated and compiled here. A pass uploads the packet, runs two graphs, of the layers and of the head,
and downloads the drawn tokens. The head draws them, so it needs the masks of guided sequences, which the host fills
while the device computes the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights
from .adapters import DeviceAdapters
from .arena import Arena, Layout
from .buckets import GpuSizes, HeadShape, LayersShape, PassShape
from .cache import cache_layout, cache_parts, layer_caches
from .decoder import Decoder
from .device import Device, DeviceEvent, Graph
from .fill import fill_weights
from .linear import float_type
from .packet import HostBuffers, Packet, result_layout
from .rotation import fill_rotations, rotation_layout
from .sampler import DeviceSampler, sampler_layout, seen_counts
from .sequences import DeviceSequence, Pieces, table_updates
from .staging import Staging
from .weights import place_weights
from .working_memory import decoder_layout


class GpuModel:
    """Used by one thread."""

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DecoderWeights | None,  # None: their room stays empty, where launches are only recorded
        sizes: GpuSizes,
        report: ReportProgress = ignore_progress,
        blocks_beside: Callable[[int], int] | None = None,
    ) -> None:
        """`blocks_beside`: how many blocks of KV cache there are beside graphs of so many bytes, in the place of the
        sizes' own. What graphs take follows from the driver alone and is measured: all are captured over a cache of one
        block, forgotten, and captured anew over the cache that serves, since they hold its addresses.
        """
        self.device, self.spec, self.sizes, self.buckets = device, spec, sizes, sizes.buckets
        self.buffers = Arena(device, buffer_layout(device, spec, sizes))
        room, placed = place_weights(device, spec, sizes.quantize, sizes.stored)
        if weights is not None:
            with Staging(device) as staging:
                fill_rotations(staging, spec, self.buffers, sizes.max_model_len)
                fill_weights(staging, spec, room, weights, sizes.quantize, sizes.stored, report)
            device.synchronize()
        self.adapters = None
        if sizes.adapters.count:
            self.adapters = DeviceAdapters(device, spec, sizes.adapters, float_type(sizes.quantize))
        self.packet, self._weights = Packet(device, self.buffers, sizes, spec.vocab_size), placed
        self._sampler = DeviceSampler(device, self.buffers, self.packet.arena)
        self._layers: dict[LayersShape, Graph] = {}
        self._heads: dict[HeadShape, Graph] = {}
        host = self.make_host_buffers()
        self._take_cache(sizes.num_blocks if blocks_beside is None else 1, host)
        free, _ = device.free_memory()
        self._compile(host, report)
        self._capture(report)
        self.graph_bytes = free - device.free_memory()[0]  # and of kernels and cuBLAS, which are loaded meanwhile
        if blocks_beside is not None:
            device.synchronize()
            self._layers.clear()
            self._heads.clear()
            self._take_cache(blocks_beside(self.graph_bytes), host)
            self._capture(report)

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
        seen, vocab = self.buffers["seen"], self.spec.vocab_size
        tokens, counts = seen_counts(state)
        self.device.run(seen[state.slot].zero_)
        self.packet.write(host, seen, state.slot * vocab + tokens, counts)

    def replay(self, shape: PassShape) -> None:
        """Enqueue a pass on what the packet holds, for benchmarks."""
        self._layers[shape.layers].replay()
        self._heads[shape.head].replay()

    def launch(self, host: HostBuffers, shape: PassShape, pieces: Pieces) -> DeviceEvent:
        """One pass over these pieces; after the event, the host buffers hold its results."""
        filled = host.fill(shape, pieces)
        self.packet.send(host, shape, filled)
        self._layers[shape.layers].replay()
        if filled.masks:
            host.fill_masks(pieces)
            self.packet.send_masks(host, filled)
        self._heads[shape.head].replay()
        self._download(host, "top_logprobs" if filled.asks else "status")
        return self.device.record()

    def _run_layers(self, shape: PassShape) -> None:
        self.packet.prepare(shape)
        self._decoder.layers(shape)

    def _run_head(self, shape: PassShape) -> None:
        self._sampler.sample(self._decoder.head(shape.rows, strict=shape.strict))
        self.packet.keep_drawn(shape)

    def _download(self, host: HostBuffers, last: str) -> None:
        """The results up to the field `last`, which are contiguous."""
        start, field = self.buffers["drawn"], self.buffers[last]
        size = field.data_ptr() + field.nbytes - start.data_ptr()
        first = start.data_ptr() - self.buffers.memory.data_ptr()
        self.device.download(host.result.memory[:size], self.buffers.memory[first : first + size])

    def _take_cache(self, blocks: int, host: HostBuffers) -> None:
        """A KV cache of so many blocks, in the place of the one before. Its block 0 has no owner yet."""
        device, spec, sizes, zero = self.device, self.spec, self.sizes, np.zeros(1, np.int32)
        cache = Arena(device, cache_layout(spec, blocks, sizes.kv_cache_dtype))
        self.caches = layer_caches(cache)
        self.packet.take_cache(cache_parts(cache))
        self.packet.copy_blocks(host, zero, zero)
        device.synchronize()
        self._decoder = Decoder(
            device, spec, self._weights, self.caches, sizes.kv_cache_dtype, self.buffers, self.packet.arena,
            self.adapters,
        )  # fmt: skip

    def _compile(self, host: HostBuffers, report: ReportProgress) -> None:
        """Every shape with only padding: of a pass on a GPU that is run."""
        shapes, device, zero = self.buckets.every(), self.device, np.zeros(1, np.int32)
        self.packet.write(host, self.packet.slot_rows, zero, zero)  # slot 0 has no owner yet
        device.run(self.buffers["seen"][0].zero_)
        self.packet.write(host, self.buffers["seen"], zero, zero)
        for done, shape in enumerate(shapes):
            report(LoadProgress(stage="compiling kernels", done=done, total=len(shapes)))
            self.packet.send(host, shape, host.fill(shape, []))
            device.compile(partial(self._run_layers, shape))
            device.compile(partial(self._run_head, shape))
            device.record().wait()

    def _capture(self, report: ReportProgress) -> None:
        shapes, device = self.buckets.every(), self.device
        for done, shape in enumerate(shapes):
            report(LoadProgress(stage="capturing graphs", done=done, total=len(shapes)))
            if shape.layers not in self._layers:
                self._layers[shape.layers] = device.capture(partial(self._run_layers, shape))
            if shape.head not in self._heads:
                self._heads[shape.head] = device.capture(partial(self._run_head, shape))
        report(LoadProgress(stage="capturing graphs", done=len(shapes), total=len(shapes)))


def buffer_layout(device: Device, spec: ModelSpec, sizes: GpuSizes) -> Layout:
    """All working memory, results included."""
    layout, rows = decoder_layout(spec, sizes, device), sizes.buckets.rows[-1]
    layout.extend(rotation_layout(spec, sizes.max_model_len))
    layout.add("slot_rows", torch.int32, sizes.slots, 1 + sizes.table_width)
    layout.extend(sampler_layout(spec.vocab_size, rows, sizes.slots, device.capability))
    layout.extend(result_layout(rows))
    return layout
