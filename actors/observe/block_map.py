"""A map of which request holds which KV blocks, with a limited number of cells. Pure.

Its time is bounded whatever the pool's size, because tokens wait while it runs: 0.6 ms with 1,344 blocks in use, 3 ms
with 96,000. If more than MAX_LOOKED_AT are in use, it looks at every k-th, which counts for k.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from ...protocol.engine_view import MAX_CELLS, NOBODY, SEVERAL, BlockMap
from ..scheduler.blocks import BlockPool

Holding = tuple[int, Sequence[int]]  # a request's number, and the block table of one of its sequences

MAX_LOOKED_AT: Final = 8192  # owned blocks, and as many cached ones


def block_map(
    pool: BlockPool, holdings: Sequence[Holding], max_cells: int = MAX_CELLS, max_looked_at: int = MAX_LOOKED_AT
) -> BlockMap:
    """The pool in cells of equal size. A cell's owner is the request with more than half of its references.

    A block shared by several requests counts for each of them, and once as owned.
    """
    counts = pool.counts()
    size = max(1, -(-pool.total // max_cells))
    cells = -(-pool.total // size)
    stride = _stride(sum(len(blocks) for _, blocks in holdings), max_looked_at)
    requests: dict[int, Counter[int]] = {}  # references by cell
    for request, blocks in holdings:
        references = _per_cell(blocks[request % stride :: stride], size)  # a short table is seen in one of k maps
        requests[request] = requests[request] + references if request in requests else references
    owner, most, all_of_it = [NOBODY] * cells, [0] * cells, [0] * cells
    for request, references in requests.items():
        for cell, count in references.items():
            all_of_it[cell] += count
            if count > most[cell]:
                owner[cell], most[cell] = request, count
    owner = [who if 2 * m > a or not a else SEVERAL for who, m, a in zip(owner, most, all_of_it, strict=True)]
    return BlockMap(
        free=counts.free,
        cached=counts.cached,
        owned=counts.owned,
        total=counts.total,
        blocks_per_cell=size,
        owner=owner,
        cell_owned=_filled(pool.owned_blocks(), counts.owned, size, cells, max_looked_at),
        cell_cached=_filled(pool.cached_blocks(), counts.cached, size, cells, max_looked_at),
    )


def _filled(blocks: Iterable[int], count: int, size: int, cells: int, max_looked_at: int) -> list[int]:
    """How many of these blocks are in each cell."""
    stride = _stride(count, max_looked_at)
    found = _per_cell(islice(blocks, 0, None, stride), size)
    return [min(size, found.get(cell, 0) * stride) for cell in range(cells)]


def _stride(count: int, max_looked_at: int) -> int:
    return max(1, -(-count // max_looked_at))


def _per_cell(blocks: Iterable[int], size: int) -> Counter[int]:
    return Counter(blocks) if size == 1 else Counter(map(size.__rfloordiv__, blocks))
