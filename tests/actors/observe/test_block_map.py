"""The map of KV blocks: each cell's owner and fill, whatever the pool's size."""

import pytest

from triolet.actors.observe.block_map import block_map
from triolet.actors.scheduler.blocks import BlockPool
from triolet.protocol.engine_view import MAX_CELLS, NOBODY, SEVERAL


def cached_block(pool: BlockPool, key: bytes) -> int:
    (block,) = pool.allocate(1)
    pool.publish(block, key)
    pool.release([block])
    return block


def test_a_small_pool_has_a_cell_per_block() -> None:
    pool = BlockPool(6)
    mine, theirs = pool.allocate(2), pool.allocate(1)
    kept = cached_block(pool, b"k")
    found = block_map(pool, [(7, mine), (9, theirs)])
    assert (found.free, found.cached, found.owned, found.total, found.blocks_per_cell) == (2, 1, 3, 6, 1)
    assert [found.owner[block] for block in (*mine, *theirs)] == [7, 7, 9]
    assert found.owner.count(NOBODY) == 3
    assert found.cell_owned == [int(block in (*mine, *theirs)) for block in range(6)]
    assert found.cell_cached == [int(block == kept) for block in range(6)]


def test_a_shared_block_is_several_peoples_and_that_of_two_choices_is_not() -> None:
    pool = BlockPool(2)
    (first, second) = pool.allocate(2)
    pool.attach([first, second])  # two choices of request 1, which is told apart from request 2 by its number
    found = block_map(pool, [(1, [first, second]), (1, [second]), (2, [first])])
    assert found.owner[first] == SEVERAL
    assert found.owner[second] == 1
    assert found.cell_owned == [1, 1]  # counted once, not per reference


def test_cells_of_several_blocks_are_the_majoritys() -> None:
    pool = BlockPool(10)
    blocks = sorted(pool.allocate(10))
    found = block_map(pool, [(1, blocks[:3]), (2, blocks[3:8]), (3, blocks[8:])], max_cells=3)  # 0-3, 4-7, 8-9
    assert found.blocks_per_cell == 4
    assert found.owner == [1, 2, 3]
    assert found.cell_owned == [4, 4, 2]
    assert sum(found.cell_owned) == found.owned


def test_without_a_majority_a_cell_is_several_peoples() -> None:
    pool = BlockPool(7)
    blocks = sorted(pool.allocate(7))
    thirds = [(1, blocks[:2]), (2, blocks[2:4]), (3, blocks[4:])]
    assert block_map(pool, thirds, max_cells=1).owner == [SEVERAL]
    assert block_map(pool, [*thirds, (3, blocks[:2])], max_cells=1).owner == [3]  # five references of nine


@pytest.mark.parametrize("total", [1, MAX_CELLS, MAX_CELLS + 1, 100_000])
def test_the_map_is_bounded_and_whole(total: int) -> None:
    pool = BlockPool(total)
    owned = pool.allocate(total // 2)
    found = block_map(pool, [(1, owned)], max_looked_at=total)
    assert 0 < len(found.owner) == len(found.cell_owned) == len(found.cell_cached) <= MAX_CELLS
    assert (len(found.owner) - 1) * found.blocks_per_cell < total <= len(found.owner) * found.blocks_per_cell
    assert sum(found.cell_owned) == found.owned == total // 2


def test_of_many_blocks_some_stand_for_all() -> None:
    """Half of the blocks are the one's, the lower half: sampled, the map still shows whose is what."""
    pool = BlockPool(10_000)
    blocks = sorted(pool.allocate(10_000))
    found = block_map(pool, [(1, blocks[:5_000]), (2, blocks[5_000:])], max_cells=10, max_looked_at=500)
    assert found.owner == [1] * 5 + [2] * 5
    assert found.cell_owned == [1_000] * 10  # 50 looked at in each, each for 20


def test_an_engine_without_a_worker_has_no_map() -> None:
    found = block_map(BlockPool(0), [])
    assert (found.total, found.owner) == (0, [])
