"""LoRA adapters packed for the CPU kernels, and the working memory of the steps that use them.

Beside float32 weights an adapter is float32, otherwise bfloat16, whatever the weights' own format.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.shape import (
    ADAPTER_COLUMNS,
    INPUT_ROW,
    INPUTS,
    INPUTS_STRIDE,
    MODULES,
    SHRUNK,
    SHRUNK_MODULE,
    SHRUNK_STRIDE,
    Int64Array,
    Shape,
)
from ...kernels.gemm.pack import IndexArray, Part, pack, packed_bytes, padded, to_float32
from ...kernels.gemm.tile import MOST_ROWS, PANEL
from ...kernels.quantise.layout import row_bytes
from ...kernels.simd.formats import GROUP, WeightFormat
from ..checkpoint.adapter import AdapterWeights
from ..checkpoint.spec import ModelSpec
from ..pages import CACHE_LINE, aligned_bytes
from .weights import head_channels

MOST_MODULES = 3  # merged in one projection: query, key and value


def adapter_format(weight_format: WeightFormat) -> WeightFormat:
    return "float32" if weight_format == "float32" else "bfloat16"


def adapter_bytes(shape: Shape, weights: AdapterWeights, weight_format: WeightFormat) -> int:
    """Of the packed adapter."""
    sizes = _module_sizes(shape)
    return sum(
        packed_bytes(rank, sizes[module][1], weight_format) + packed_bytes(sizes[module][0], rank, weight_format)
        for layer in weights.layers
        for module, part in layer.items()
        for rank in [padded(part.rank, PANEL)]
    )


class PackedAdapter:
    """The packed matrices and their address table; B includes the scale."""

    def __init__(self, spec: ModelSpec, shape: Shape, weights: AdapterWeights, weight_format: WeightFormat) -> None:
        self.rank = padded(weights.rank, PANEL)
        self._packed = aligned_bytes(adapter_bytes(shape, weights, weight_format))
        self._table = np.zeros((shape.layers, MODULES, ADAPTER_COLUMNS), np.int64)
        self._used = 0
        self._format: WeightFormat = weight_format
        sizes = _module_sizes(shape)
        for row, layer in zip(self._table, weights.layers, strict=True):
            for entry, (module, (channels, k)) in zip(row, sizes.items(), strict=True):
                part = layer.get(module)
                if part is None:
                    continue
                rank, ranks = padded(part.rank, PANEL), np.arange(part.rank)
                order = spec.rotary_order if module in ("q_proj", "k_proj") else None
                out = _places(shape, part.b.shape[0], order, by_head=module in ("q_proj", "k_proj", "v_proj"))
                into = _places(shape, part.a.shape[1], None, by_head=module == "o_proj")
                scaled = to_float32(part.b) * np.float32(part.scale)
                entry[:] = (
                    self._pack(Part(part.a, ranks), into, rank, k),
                    self._pack(Part(scaled, out), ranks, channels, rank),
                    rank,
                )

    @property
    def address(self) -> int:
        return self._table.ctypes.data

    def _pack(self, part: Part, columns: IndexArray, channels: int, k: int) -> int:
        size = packed_bytes(channels, k, self._format)
        target = self._packed[self._used : self._used + size]
        self._used += size
        pack(target, [part], columns, channels, k, self._format)
        return target.ctypes.data


class AdapterMemory:
    """What a step with adapters writes to; it grows with the largest rank, between steps."""

    def __init__(self, shape: Shape, weight_format: WeightFormat, threads: int, job: Int64Array) -> None:
        self._shape, self._threads, self._job = shape, threads, job
        self._value_bytes = row_bytes(weight_format, GROUP) // GROUP
        self._rank = 0
        self._arrays: list[npt.NDArray[np.uint8]] = []

    def bytes_for(self, rank: int) -> int:
        """That it would take in addition."""
        return sum(self._sizes(rank)) if rank > self._rank else 0

    def hold(self, rank: int) -> None:
        """Make room for adapters of this padded rank."""
        if rank <= self._rank:
            return
        self._rank, job = rank, self._job
        shrunk, inputs = self._arrays = [aligned_bytes(size) for size in self._sizes(rank)]
        job[SHRUNK], job[INPUTS] = shrunk.ctypes.data, inputs.ctypes.data
        job[SHRUNK_MODULE] = rank * self._value_bytes
        job[SHRUNK_STRIDE] = MOST_MODULES * rank * self._value_bytes
        job[INPUT_ROW], job[INPUTS_STRIDE] = self._input_row(), inputs.size // self._threads

    def _sizes(self, rank: int) -> tuple[int, int]:
        inputs = padded(MOST_ROWS * (self._input_row() + rank * 4)) + CACHE_LINE
        return self._shape.max_tokens * MOST_MODULES * rank * self._value_bytes, self._threads * inputs

    def _input_row(self) -> int:
        """Bytes, with a cache line between rows as among the activations."""
        shape = self._shape
        return max(shape.hidden_padded, shape.attention_padded, shape.mlp_padded) * self._value_bytes + CACHE_LINE


def _module_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Padded (channels, k), in the order of the kernel's table."""
    hidden, query, kv = shape.hidden_padded, shape.attention_padded, shape.kv_heads * shape.head_padded
    return {
        "q_proj": (query, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (shape.mlp_padded, hidden),
        "up_proj": (shape.mlp_padded, hidden),
        "down_proj": (hidden, shape.mlp_padded),
    }


def _places(shape: Shape, size: int, order: IndexArray | None, *, by_head: bool) -> IndexArray:
    """Where a module's outputs, or its inputs, are in the padded row: heads are padded one by one."""
    return head_channels(shape, 0, size // shape.head_dim, order) if by_head else np.arange(size)
