"""Attention over cached rows that are keys and values at once, against its definition; stale NaN in unused places."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.paged_attention.cache import BLOCK_TOKENS, region_bytes, store_row
from triolet.kernels.paged_attention.cpu import attend
from triolet.kernels.paged_attention.reference import paged_attention_reference
from triolet.kernels.paged_attention.softmax import NO_SINK
from triolet.kernels.paged_attention.tile import MOST_ROWS, scratch_bytes
from triolet.kernels.simd.formats import LATENT_TAGS, CacheTag

Format = Literal["float32", "bfloat16"]
FORMATS: tuple[Format, ...] = ("float32", "bfloat16")
FloatArray = npt.NDArray[np.float32]
BLOCKS = 9


@compiled
def call_store(tag: CacheTag, row: int, region: int, token: int, size: int) -> None:
    store_row(tag, row, region, token, size)


@compiled
def call_attend(
    tag: CacheTag, rows: int, q: int, stride: int, limits: int, table: int, first: int, blocks: int, seen: int,
    cache: int, step: int, after: int, left: int, scratch: int, size: int, cap: np.float32,
) -> None:  # fmt: skip
    attend(tag, rows, q, stride, limits, table, first, blocks, seen, cache, step, after, left, scratch, size, cap)


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Every byte is 0xFF, which is NaN."""
    raw = np.full(size + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


class Cache:
    """A sequence of `length` rows in scattered blocks."""

    def __init__(self, cache_format: Format, size: int, length: int, table: tuple[int, ...] = (5, 2, 7, 0)) -> None:
        self.format: Format = cache_format
        self.size, self.table = size, np.array(table, np.int32)
        rows = np.random.default_rng(size + length).standard_normal((length, size)).astype(np.float32)
        self.rows = round_to_bfloat16(rows) if cache_format == "bfloat16" else rows
        self.region = region_bytes(size, cache_format, latent=True)
        self.memory = aligned(BLOCKS * self.region)
        for token, row in enumerate(self.rows):
            region = self.memory.ctypes.data + int(table[token // BLOCK_TOKENS]) * self.region
            call_store(LATENT_TAGS[cache_format], row.ctypes.data, region, token % BLOCK_TOKENS, size)

    def attend(self, queries: FloatArray, positions: list[int]) -> FloatArray:
        """queries [rows, size], already scaled; at most MOST_ROWS."""
        rows, size = queries.shape
        out = np.full((rows, size), np.nan, np.float32)
        limits = np.array([[out[row].ctypes.data, 0, positions[row], NO_SINK] for row in range(rows)], np.int64)
        scratch, last = aligned(scratch_bytes(size, MOST_ROWS)), positions[-1]
        call_attend(
            LATENT_TAGS[self.format], rows, queries.ctypes.data, 4 * size, limits.ctypes.data, self.table.ctypes.data,
            0, last // BLOCK_TOKENS + 1, last + 1, self.memory.ctypes.data, self.region, self.memory.ctypes.data,
            64, scratch.ctypes.data, size, np.float32(0),
        )  # fmt: skip
        return out

    def wanted(self, queries: FloatArray, positions: list[int]) -> FloatArray:
        """By the definition, with the rows as keys and as values."""
        paged = np.full((BLOCKS, 1, BLOCK_TOKENS, self.size), np.nan, np.float32)
        for token, row in enumerate(self.rows):
            paged[self.table[token // BLOCK_TOKENS], 0, token % BLOCK_TOKENS] = row
        plain = queries.astype(np.float64)[:, None] * np.sqrt(self.size) * np.log(2)  # the definition scales by itself
        found = paged_attention_reference(plain, np.array(positions, np.int32), paged, paged, self.table)
        return np.asarray(found[:, 0], np.float32)


def close(cache: Cache, result: FloatArray, wanted: FloatArray, keys_seen: int) -> bool:
    """As in test_paged_attention.py; a query is not rounded here."""
    slack = {"float32": 2e-5, "bfloat16": 5 * 2.0**-8 / keys_seen**0.5}[cache.format]
    return bool((np.abs(result - wanted) <= slack).all())


def make_queries(rows: int, size: int) -> FloatArray:
    drawn = np.random.default_rng(rows).standard_normal((rows, size))
    return np.asarray(drawn * 1.5 / np.sqrt(size), np.float32)


@pytest.mark.parametrize("cache_format", FORMATS)
@pytest.mark.parametrize("size", [96, 576])
@pytest.mark.parametrize("length", [1, 2, 5, 24, 63, 64, 65, 201])
def test_matches_the_definition(cache_format: Format, size: int, length: int) -> None:
    cache = Cache(cache_format, size, length)
    for rows in range(1, MOST_ROWS + 1):
        positions = [max(0, length - 1 - (rows - 1 - row) // 2) for row in range(rows)]
        queries = make_queries(rows, size)
        result = cache.attend(queries, positions)
        assert close(cache, result, cache.wanted(queries, positions), positions[0] + 1)
        if length > 2:
            shifted = cache.wanted(queries, [position - 1 for position in positions])
            assert not close(cache, result, shifted, positions[0] + 1)


@pytest.mark.parametrize("cache_format", FORMATS)
def test_a_row_is_the_same_alone_and_beside_others(cache_format: Format) -> None:
    cache, elsewhere = Cache(cache_format, 96, 230), Cache(cache_format, 96, 230, (1, 8, 3, 6))
    positions = [10, 63, 64, 128, 190, 229][:MOST_ROWS]
    queries = make_queries(len(positions), 96)
    together = cache.attend(queries, positions)
    for row, position in enumerate(positions):
        np.testing.assert_array_equal(elsewhere.attend(queries[row : row + 1], [position])[0], together[row])


def test_a_cached_row_is_there_once() -> None:
    """kv_rank + rope numbers a token: 512 and 64 of DeepSeek's models."""
    assert region_bytes(576, "bfloat16", latent=True) == BLOCK_TOKENS * 576 * 2
