"""Latent attention on the CPU: its sizes, working arrays and packed weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.latent_shape import (
    KEYS,
    LATENT_COLUMNS,
    NORM,
    QUERY,
    QUERY_NORM,
    VALUES,
    Latent,
)
from ...kernels.decoder_step.shape import Int64Array
from ...kernels.gemm.pack import IndexArray, Part, padded, to_float32
from ...kernels.gemm.tile_int4 import INT4_MOST_ROWS
from ...kernels.quantise.layout import row_bytes
from ...kernels.rope.cpu import head_positions, padded_head
from ...kernels.simd.formats import LATENT_TAGS, CacheFormat, WeightFormat
from ..checkpoint.latent import LatentSpec, LatentWeights
from ..checkpoint.stored import float_part
from ..pages import CACHE_LINE, aligned_bytes
from .experts import KeepVector, PackMatrix


class LatentSizes:
    """Padded sizes in values, before anything is allocated."""

    def __init__(self, spec: LatentSpec, heads: int) -> None:
        self.spec, self.heads = spec, heads
        self.kv, self.rope = padded(spec.kv_rank), padded_head(spec.rope_dim)
        self.plain, self.value = padded(spec.plain_dim), padded(spec.value_dim)
        self.query = padded(spec.query_rank or 0)
        self.query_offset = self.kv + padded(self.rope)
        self.queries = padded(heads * (self.plain + self.rope))
        self.row = self.kv + self.rope  # of the cache
        self.projected = self.query_offset + (self.query or self.queries)  # channels of the first projection
        self.mixed = heads * self.value  # inputs of the output projection

    def matrices(self) -> list[tuple[int, int]]:
        """Padded (channels, k) of a layer's packed matrices beside the first and the output projection."""
        query = [(self.queries, self.query)] if self.query else []
        return [*query, (self.heads * self.kv, self.plain), (self.mixed, self.kv)]

    def input_stride(self, weight_format: WeightFormat) -> int:
        return padded(row_bytes(weight_format, max(self.plain, self.kv))) + CACHE_LINE  # as of activations

    def workspace(self, weight_format: WeightFormat, max_tokens: int) -> dict[str, int]:
        """Bytes of every working array; the names are those of Latent."""
        vector = 4 * max(self.kv, self.rope, self.query)
        return {
            "heads": max_tokens * self.queries * 4 if self.query else 0,
            "inputs": self.heads * input_rows(max_tokens) * self.input_stride(weight_format),
            "mixed": max_tokens * self.heads * self.row * 4,
            "still": vector,
            "ones": vector,
            "zeros": vector,
        }


def input_rows(max_tokens: int) -> int:
    return max_tokens + INT4_MOST_ROWS  # a tile reads past the last row


class LatentArrays:
    """The working arrays and the address table; `memory` is valid as long as this object lives."""

    def __init__(
        self,
        sizes: LatentSizes,
        layers: int,
        weight_format: WeightFormat,
        cache_format: CacheFormat,
        max_tokens: int,
    ) -> None:
        self._sizes, spec = sizes, sizes.spec
        self.arrays = {name: aligned_bytes(size) for name, size in sizes.workspace(weight_format, max_tokens).items()}
        self.arrays["ones"].view(np.float32)[:] = 1
        self.arrays["still"].view(np.float32)[: sizes.kv // 2] = 1
        self.memory = Latent(
            cache_tag=LATENT_TAGS[cache_format],
            kv_rank=spec.kv_rank,
            kv_padded=sizes.kv,
            rope_padded=sizes.rope,
            plain_padded=sizes.plain,
            value_padded=sizes.value,
            query_rank=spec.query_rank or 0,
            query_padded=sizes.query,
            query_offset=sizes.query_offset,
            queries_padded=sizes.queries,
            input_rows=input_rows(max_tokens),
            input_stride=sizes.input_stride(weight_format),
            eps=float(spec.norm_eps),
            table=np.zeros((layers, LATENT_COLUMNS), np.int64),
            **{name: array.ctypes.data for name, array in self.arrays.items()},
        )

    def projection(self, weights: LatentWeights, order: IndexArray) -> list[Part]:
        """The parts of the first projection; `order` is that of the rotated dimensions."""
        sizes, rank = self._sizes, self._sizes.spec.kv_rank
        if weights.query_down is None:
            query = Part(weights.query, sizes.query_offset + self._query_channels(order))
        else:
            query = Part(weights.query_down, sizes.query_offset + np.arange(len(weights.query_down)))
        return [
            Part(weights.down[:rank], np.arange(rank)),
            Part(weights.down[rank:], sizes.kv + self._turned(order)),
            query,
        ]

    def mixed_channels(self) -> IndexArray:
        """Where the output projection's inputs are in their padded row."""
        starts = np.arange(self._sizes.heads) * self._sizes.value
        return (starts[:, None] + np.arange(self._sizes.spec.value_dim)).reshape(-1)

    def fill(
        self,
        layer: int,
        weights: LatentWeights,
        order: IndexArray,
        weight_format: WeightFormat,
        pack: PackMatrix,
        keep: KeepVector,
    ) -> None:
        """Pack a layer's other matrices, and write their addresses into the table."""
        sizes, row = self._sizes, self.memory.table[layer]
        spec, (*query, keys, values) = sizes.spec, sizes.matrices()
        if query and weights.query_norm is not None:
            part = Part(weights.query, self._query_channels(order))
            self._pack(row, QUERY, [part], int(weights.query.shape[1]), query[0], weight_format, pack)
            row[QUERY_NORM] = keep(_spread(weights.query_norm, sizes.query))
        row[NORM] = keep(_spread(weights.norm, sizes.kv))
        key_parts, value_parts = list[Part](), list[Part]()
        for head in range(sizes.heads):
            start = head * (spec.plain_dim + spec.value_dim)
            middle, end = start + spec.plain_dim, start + spec.plain_dim + spec.value_dim
            turned = np.ascontiguousarray(float_part(weights.up, start, middle).T)
            key_parts.append(Part(turned, head * sizes.kv + np.arange(spec.kv_rank)))
            value_parts.append(Part(weights.up[middle:end], head * sizes.value + np.arange(spec.value_dim)))
        self._pack(row, KEYS, key_parts, spec.plain_dim, keys, weight_format, pack)
        self._pack(row, VALUES, value_parts, spec.kv_rank, values, weight_format, pack)

    @staticmethod
    def _pack(
        row: Int64Array,
        column: int,
        parts: list[Part],
        inputs: int,
        size: tuple[int, int],
        weight_format: WeightFormat,
        pack: PackMatrix,
    ) -> None:
        row[column], row[column + 1] = pack(parts, np.arange(inputs), *size, weight_format)

    def _turned(self, order: IndexArray) -> IndexArray:
        """The places of the rotated dimensions in their padded part of a head."""
        positions = head_positions(self._sizes.spec.rope_dim)
        positions[order] = positions.copy()
        return positions

    def _query_channels(self, order: IndexArray) -> IndexArray:
        sizes = self._sizes
        one = np.concatenate([np.arange(sizes.spec.plain_dim), sizes.plain + self._turned(order)])
        channels: IndexArray = ((np.arange(sizes.heads) * (sizes.plain + sizes.rope))[:, None] + one).reshape(-1)
        return channels


def _spread(values: npt.NDArray[np.float32] | npt.NDArray[np.uint16], size: int) -> npt.NDArray[np.float32]:
    whole = np.zeros(size, np.float32)
    whole[: len(values)] = to_float32(values)
    return whole
