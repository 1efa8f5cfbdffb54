"""The attention kernel against its definition: ragged rows, windows, any head size, stale NaN in every unused place."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.paged_attention.cache import BLOCK_TOKENS, region_bytes, store_key, store_value
from triolet.kernels.paged_attention.cpu import attend
from triolet.kernels.paged_attention.query import query_bytes, store_query
from triolet.kernels.paged_attention.reference import int8_cache_reference, paged_attention_reference
from triolet.kernels.paged_attention.softmax import NO_SINK
from triolet.kernels.paged_attention.tile import MOST_ROWS, scratch_bytes
from triolet.kernels.simd.amx import TILE_ROWS
from triolet.kernels.simd.formats import CACHE_TAGS, CacheFormat, CacheTag

FORMATS = get_args(CacheFormat)
FloatArray = npt.NDArray[np.float32]
KV_HEADS, BLOCKS = 2, 9
TABLE = np.array([5, 2, 7, 0], np.int32)


@compiled
def call_store(tag: CacheTag, key: int, value: int, bias: int, region: int, token: int, size: int) -> None:
    store_key(tag, key, region, token, size)
    store_value(tag, value, bias, region, token, size)


@compiled
def call_query(tag: CacheTag, query: int, out: int, size: int) -> None:
    store_query(tag, query, out, size)


@compiled
def call_attend(
    tag: CacheTag, rows: int, q: int, stride: int, limits: int, table: int, first: int, blocks: int, seen: int,
    cache: int, step: int, after: int, left: int, scratch: int, size: int, cap: np.float32,
) -> None:  # fmt: skip
    attend(tag, rows, q, stride, limits, table, first, blocks, seen, cache, step, after, left, scratch, size, cap)


def aligned(size: int, fill: int = 0) -> npt.NDArray[np.uint8]:
    raw = np.full(size + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def stored_as(cache_format: CacheFormat, rows: FloatArray) -> FloatArray:
    """What the cache keeps of float32 rows. Keeping that again changes at most the last bit of an int8 scale."""
    if cache_format == "float32":
        return rows
    if cache_format == "bfloat16":
        return round_to_bfloat16(rows)
    return int8_cache_reference(rows)


class Cache:
    """A sequence of `length` tokens in scattered blocks; every other byte of the cache is 0xFF, which is NaN."""

    def __init__(
        self,
        cache_format: CacheFormat,
        size: int,
        length: int,
        table: npt.NDArray[np.int32],
        kernel: Callable[..., None] = call_attend,
    ) -> None:
        self.format: CacheFormat = cache_format
        self.kernel = kernel
        self.size, self.length, self.table = size, length, table
        rng = np.random.default_rng(size + length)
        self.keys = rng.standard_normal((length, KV_HEADS, size)).astype(np.float32)
        self.values = rng.standard_normal((length, KV_HEADS, size)).astype(np.float32)
        self.keys, self.values = (stored_as(cache_format, rows) for rows in (self.keys, self.values))
        self.region = region_bytes(size, cache_format)
        self.memory = aligned(BLOCKS * KV_HEADS * self.region, 0xFF)
        bias = np.zeros(size, np.float32)
        for token in range(length):
            block = int(table[token // BLOCK_TOKENS])
            for head in range(KV_HEADS):
                call_store(
                    CACHE_TAGS[cache_format], self.keys[token, head].ctypes.data,
                    self.values[token, head].ctypes.data, bias.ctypes.data,
                    self.memory.ctypes.data + (block * KV_HEADS + head) * self.region, token % BLOCK_TOKENS, size,
                )  # fmt: skip

    def attend(
        self,
        queries: FloatArray,
        positions: list[int],
        head: int,
        window: int | None,
        cap: float = 0.0,
        sinks: FloatArray | None = None,
    ) -> FloatArray:
        """queries [rows, size] of one kv head, already scaled; no more than the kernel takes. A sink for each row."""
        rows, size = queries.shape
        stride = query_bytes(size, self.format)
        stored = aligned(rows * stride, 0xFF)
        for row in range(rows):
            call_query(CACHE_TAGS[self.format], queries[row].ctypes.data, stored.ctypes.data + row * stride, size)
        out = np.full((rows, size), np.nan, np.float32)
        lows = [max(0, p - window + 1) if window else 0 for p in positions]
        starts = np.full(rows, NO_SINK)
        if sinks is not None:
            pairs = np.stack([sinks * np.float32(np.log2(np.e)), np.ones(rows, np.float32)], axis=1)
            starts = pairs.view(np.int64)[:, 0]
        outputs = [out[row].ctypes.data for row in range(rows)]
        descriptors = np.array([outputs, lows, positions, starts], np.int64).T.copy()
        scratch = aligned(scratch_bytes(size, TILE_ROWS), 0xFF)
        first = min(lows) // BLOCK_TOKENS
        self.kernel(
            CACHE_TAGS[self.format], rows, stored.ctypes.data, stride, descriptors.ctypes.data,
            self.table.ctypes.data, first, positions[-1] // BLOCK_TOKENS + 1 - first, positions[-1] + 1,
            self.memory.ctypes.data + head * self.region, KV_HEADS * self.region, self.memory.ctypes.data,
            64, scratch.ctypes.data, size, np.float32(cap * np.log2(np.e)),
        )  # fmt: skip
        return out

    def wanted(
        self,
        queries: FloatArray,
        positions: list[int],
        head: int,
        window: int | None,
        cap: float = 0.0,
        sinks: FloatArray | None = None,
    ) -> FloatArray:
        shape = (BLOCKS, KV_HEADS, BLOCK_TOKENS, self.size)
        keys, values = (np.full(shape, np.nan, np.float32) for _ in range(2))
        for token in range(self.length):
            for cache, source in zip((keys, values), (self.keys, self.values), strict=True):
                cache[self.table[token // BLOCK_TOKENS], :, token % BLOCK_TOKENS] = source[token]
        # The kernel's queries come scaled by log2(e) / sqrt(size); the definition scales by itself.
        plain = queries.astype(np.float64) * np.sqrt(self.size) * np.log(2)
        wide = np.zeros((len(positions), KV_HEADS, self.size))
        wide[:, head] = plain
        found = list[npt.NDArray[np.float64]]()
        for row, position in enumerate(positions):
            of_heads = None if sinks is None else np.full(KV_HEADS, sinks[row])
            where = np.array([position], np.int32)
            found.append(
                paged_attention_reference(wide[row : row + 1], where, keys, values, self.table, window, cap, of_heads)[
                    0, head
                ]
            )
        return np.asarray(found, np.float32)


def close(cache: Cache, result: FloatArray, wanted: FloatArray, keys_seen: int) -> bool:
    """float32: a score has an error of size * 2**-24 times |q| |k| (a few units), which the exponential passes on:
    2e-5.

    bfloat16: besides, each probability has a rounding error of deviation 2**-8 / sqrt(3), independent of the others.
    With scores of deviation 1 the squared probabilities of n keys sum to about e / n: five deviations are 5 * 2**-8 /
    sqrt(n).

    int8: a query's value is rounded to 65278 steps, a probability times its value's scale to 65535, each of at most
    1 / 65535 of the largest; a score then has an error of deviation 2e-5, and the probabilities' polynomial one of 2e-4
    that mostly cancels, being in their sum as well. Values of up to 3 in place, at most 6e-4.
    """
    slack = {"float32": 2e-5, "bfloat16": 5 * 2.0**-8 / keys_seen**0.5, "int8": 6e-4}[cache.format]
    return bool((np.abs(result - wanted) <= slack).all())


def make_queries(cache_format: CacheFormat, rows: int, size: int) -> FloatArray:
    queries = (np.random.default_rng(rows).standard_normal((rows, size)) * 1.5 / np.sqrt(size)).astype(np.float32)
    return round_to_bfloat16(queries) if cache_format == "bfloat16" else queries


@pytest.mark.parametrize("cache_format", FORMATS)
@pytest.mark.parametrize("size", [32, 64, 96])
@pytest.mark.parametrize("window", [None, 1, 40, 64, 100])
@pytest.mark.parametrize("length", [1, 2, 24, 63, 64, 65, 201])
def test_matches_the_definition(cache_format: CacheFormat, size: int, window: int | None, length: int) -> None:
    cache = Cache(cache_format, size, length, TABLE)
    for rows in range(1, MOST_ROWS + 1):
        positions = [max(0, length - 1 - (rows - 1 - row) // 2) for row in range(rows)]  # two heads a token
        queries = make_queries(cache_format, rows, size)
        result = cache.attend(queries, positions, 1, window)
        wanted = cache.wanted(queries, positions, 1, window)
        keys_seen = min(positions[0] + 1, window or length)
        assert close(cache, result, wanted, keys_seen)
        if length > 2:
            shifted = cache.wanted(queries, [position - 1 for position in positions], 1, window)
            assert not close(cache, result, shifted, keys_seen)


@pytest.mark.parametrize("cache_format", FORMATS)
def test_soft_caps(cache_format: CacheFormat) -> None:
    """Scores of deviation 1.5 under a cap of 2: far from linear. A cap 3 % off is noticed, and so is none."""
    size, length, rows = 64, 150, min(3, MOST_ROWS)
    cache = Cache(cache_format, size, length, TABLE)
    queries = make_queries(cache_format, rows, size)
    positions = [length - rows + row for row in range(rows)]
    result = cache.attend(queries, positions, 1, None, 2.0)
    assert close(cache, result, cache.wanted(queries, positions, 1, None, 2.0), length)
    for other in (2.2 if cache_format == "bfloat16" else 2.06, 0.0):
        assert not close(cache, result, cache.wanted(queries, positions, 1, None, other), length)


@pytest.mark.parametrize("cache_format", FORMATS)
@pytest.mark.parametrize("window", [None, 50])
def test_sinks(cache_format: CacheFormat, window: int | None) -> None:
    """From one that counts nothing to one that takes nearly all. Each row has its own; none at all is noticed."""
    size, length = 64, 150
    cache = Cache(cache_format, size, length, TABLE)
    queries = make_queries(cache_format, MOST_ROWS, size)
    positions = [2, 63, 64, 100, 140, 149][:MOST_ROWS]
    sinks = np.array([0.5, 4.0, 5.0, 12.0, -1e30, 6.0], np.float32)[:MOST_ROWS]
    result = cache.attend(queries, positions, 1, window, 0.0, sinks)
    assert close(cache, result, cache.wanted(queries, positions, 1, window, 0.0, sinks), 1)
    for row, sink in enumerate(sinks):
        one = slice(row, row + 1)
        same = close(cache, result[one], cache.wanted(queries[one], positions[one], 1, window), 40)
        assert same == (sink < -1e20)
        alone = cache.attend(queries[one], positions[one], 1, window, 0.0, sinks[one])
        np.testing.assert_array_equal(alone[0], result[row])


@pytest.mark.parametrize("cache_format", FORMATS)
@pytest.mark.parametrize("window", [None, 50])
def test_a_row_is_the_same_alone_and_beside_others(cache_format: CacheFormat, window: int | None) -> None:
    size, length = 64, 230
    cache = Cache(cache_format, size, length, TABLE)
    elsewhere = Cache(cache_format, size, length, np.array([1, 8, 3, 6], np.int32))
    positions = [10, 63, 64, 128, 190, 229][:MOST_ROWS]  # some see a single block, some four
    queries = make_queries(cache_format, len(positions), size)
    together = cache.attend(queries, positions, 0, window)
    for row, position in enumerate(positions):
        alone = elsewhere.attend(queries[row : row + 1], [position], 0, window)
        np.testing.assert_array_equal(alone[0], together[row])


def test_an_int8_cache_is_read_exactly_but_for_rounding() -> None:
    """The relative error against exact attention over the SAME integers; and that of scales one token late."""
    size, length = 64, 230
    cache = Cache("int8", size, length, TABLE)
    errors, late = list[float](), list[float]()
    queries = make_queries("int8", MOST_ROWS, size)
    for head in range(KV_HEADS):
        for position in (100, 170, 229):
            positions = [position] * MOST_ROWS
            wanted = cache.wanted(queries, positions, head, None)
            error = cache.attend(queries, positions, head, None) - wanted
            errors += [
                float(np.linalg.norm(row) / np.linalg.norm(exact)) for row, exact in zip(error, wanted, strict=True)
            ]
    assert max(errors) < 1e-3
    positions = [length - 1] * MOST_ROWS
    wanted = cache.wanted(queries, positions, KV_HEADS - 1, None)
    values = cache.memory.reshape(BLOCKS, KV_HEADS, 2, -1)[:, :, 1, size * BLOCK_TOKENS :].view(np.float32)
    values[...] = np.roll(values, 1, axis=-1)
    for row in range(MOST_ROWS):
        shifted = cache.attend(queries, positions, KV_HEADS - 1, None)[row] - wanted[row]
        late.append(float(np.linalg.norm(shifted) / np.linalg.norm(wanted[row])))
    assert min(late) > 1e-3


@pytest.mark.parametrize("cache_format", FORMATS)
def test_extreme_scores_stay_finite(cache_format: CacheFormat) -> None:
    cache = Cache(cache_format, 32, 100, TABLE)
    result = cache.attend(make_queries(cache_format, 1, 32) * 1e4, [99], 0, None)
    best = cache.wanted(make_queries(cache_format, 1, 32) * 1e4, [99], 0, None)
    assert close(cache, result, best, 1)
