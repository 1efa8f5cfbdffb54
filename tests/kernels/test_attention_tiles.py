"""Attention by a tile unit: an emulated one against the definition, its rows alone and together; the real one's code.

Where there is a real one, it must give the emulated one's bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from triolet.kernels.paged_attention.cpu import emit_tiles, most_rows
from triolet.kernels.paged_attention.tile import MOST_ROWS
from triolet.kernels.simd.amx import TILE_ROWS, Amx
from triolet.kernels.simd.dot import multiplies_pairs

from .test_paged_attention import TABLE, Cache, FloatArray, call_attend, close, make_queries
from .tile_units import EmulatedTiles, attention_with, machine_code

pytestmark = pytest.mark.skipif(not multiplies_pairs(), reason="queries are no pairs of bfloat16 here")
Attend = Callable[..., None]
faulty = np.zeros(1, np.int64)


@pytest.fixture(autouse=True)
def usual_unit() -> Iterator[None]:
    yield
    faulty[0] = 0


@pytest.fixture(scope="module")
def by_tiles() -> Attend:
    return attention_with(EmulatedTiles(faulty.ctypes.data))


def found_by(cache: Cache, by_tiles: Attend, *arguments: Any) -> FloatArray:
    """By the emulated unit, and by the real one if there is one: the same bits."""
    cache.kernel = by_tiles
    found = cache.attend(*arguments)
    if most_rows("bfloat16") == TILE_ROWS:
        cache.kernel = call_attend
        np.testing.assert_array_equal(cache.attend(*arguments), found)
    return found


@pytest.mark.parametrize("size", [32, 64, 96])
@pytest.mark.parametrize("window", [None, 1, 40, 100])
@pytest.mark.parametrize("length", [1, 2, 24, 31, 32, 33, 63, 64, 65, 201])
def test_matches_the_definition(by_tiles: Attend, size: int, window: int | None, length: int) -> None:
    cache = Cache("bfloat16", size, length, TABLE)
    for rows in (1, 2, 7, 15, TILE_ROWS):
        positions = [max(0, length - 1 - (rows - 1 - row) // 4) for row in range(rows)]  # four heads a token
        queries = make_queries("bfloat16", rows, size)
        result = found_by(cache, by_tiles, queries, positions, 1, window)
        wanted = cache.wanted(queries, positions, 1, window)
        keys_seen = min(positions[0] + 1, window or length)
        assert close(cache, result, wanted, keys_seen)
        if length > 4:
            shifted = cache.wanted(queries, [position - 1 for position in positions], 1, window)
            assert not close(cache, result, shifted, keys_seen)


@pytest.mark.parametrize("window", [None, 50])
def test_a_row_is_the_same_alone_and_beside_others(by_tiles: Attend, window: int | None) -> None:
    size, length = 64, 230
    cache = Cache("bfloat16", size, length, TABLE)
    elsewhere = Cache("bfloat16", size, length, np.array([1, 8, 3, 6], np.int32))
    positions = [0, 10, 31, 32, 62, 63, 64, 65, 95, 96, 127, 128, 190, 191, 228, 229]
    sinks = np.linspace(-2, 6, len(positions), dtype=np.float32)
    queries = make_queries("bfloat16", len(positions), size)
    together = found_by(cache, by_tiles, queries, positions, 0, window, 5.0, sinks)
    assert close(cache, together, cache.wanted(queries, positions, 0, window, 5.0, sinks), 1)
    for row, position in enumerate(positions):
        one = slice(row, row + 1)
        alone = found_by(elsewhere, by_tiles, queries[one], [position], 0, window, 5.0, sinks[one])
        np.testing.assert_array_equal(alone[0], together[row])


def test_a_unit_that_adds_pairs_in_one_sum_gives_other_bits(by_tiles: Attend) -> None:
    cache = Cache("bfloat16", 64, 100, TABLE)
    arguments = make_queries("bfloat16", 3, 64), [97, 98, 99], 0, None
    cache.kernel = by_tiles
    found = cache.attend(*arguments)
    faulty[0] = 1
    assert (cache.attend(*arguments) != found).any(axis=1).all()


def test_only_a_unit_takes_more_rows() -> None:
    assert most_rows("float32") == most_rows("int8") == MOST_ROWS
    assert most_rows("bfloat16") in (MOST_ROWS, TILE_ROWS)


def test_the_real_units_machine_code() -> None:
    """Compiled for a Sapphire Rapids, not run: no tile is kept in memory but the totals that vectors go on with.

    Scores come for 1, 2 or 4 vectors of tokens: a query and as many keys for as many products. Values have two strips
    for 32 tokens, or for 64.
    """

    def emit(module: ir.Module) -> ir.Function:
        return emit_tiles(module, Amx())

    code = machine_code(emit)
    names = re.findall(r"\t(ldtilecfg|tile(?!zero)\w+|tdp\w+)", code)
    products = 1 + 2 + 4 + 2 + 4
    assert {name: names.count(name) for name in names} == {
        "ldtilecfg": 1, "tilerelease": 1, "tdpbf16ps": products, "tileloadd": products + 3 + 2,
        "tilestored": 1 + 2 + 4 + 2 + 2,
    }  # fmt: skip
