"""BlockPool: the only owner of KV block ids. Always `free + cached + owned == total`. Pure.

free     without owner, content meaningless
cached   without owner, but its content has a name (`prefix_keys.py`) and can be attached again; evicted oldest first
owned    in the block table of at least one sequence; a shared prefix block has one reference per table

Blocks are released at once, even while steps that write them are in flight. Steps run in order, so the next owner of
such a block writes it later.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final

from ...protocol.reports import BlockCounts
from ...protocol.settings import BLOCK_SIZE
from .prefix_keys import Key

RECOUNTED: Final = 64  # owned blocks; 0.003 ms


def blocks_for(tokens: int) -> int:
    """How many blocks this many tokens need."""
    return -(-tokens // BLOCK_SIZE)


class LedgerError(AssertionError):
    """The ledger does not balance: a bug, after which no KV content can be trusted."""


class BlockPool:
    """Hands out blocks, counts references to shared ones and remembers what released ones hold."""

    def __init__(self, total: int, evictions: int = 0) -> None:
        self.total = total
        self.evictions = evictions  # cached blocks that made room, in this pool and earlier ones
        self._free = dict.fromkeys(range(total - 1, -1, -1))  # the last one is taken first
        self._owned: dict[int, int] = {}  # block -> references
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._by_key: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}  # of owned and cached blocks with a name
        self._changed: set[int] = set()  # since the last audit
        self._steps_to_recount = 0

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give: free ones, then cached ones by eviction."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each; the caller has checked `available`."""
        taken: list[int] = []
        for _ in range(count):
            if self._free:
                block, _ = self._free.popitem()
            else:
                block, _ = self._cached.popitem(last=False)
                del self._by_key[self._key_of.pop(block)]
                self.evictions += 1
            self._owned[block] = 1
            taken.append(block)
        self._changed.update(taken)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each, last block first, so that a prefix is evicted from its end."""
        self._changed.update(blocks)
        for block in reversed(blocks):
            references = self._owned[block]
            if references > 1:
                self._owned[block] = references - 1
                continue
            del self._owned[block]
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._free[block] = None

    def match(self, keys: Iterable[Key]) -> list[int]:
        """The blocks that hold the longest known prefix of `keys`. Nothing changes until `attach`."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these have no owner: attaching them reduces `available` by this many."""
        return sum(1 for block in blocks if block in self._cached)

    def attach(self, blocks: Sequence[int]) -> None:
        """Add a reference to each of the blocks that `match` found."""
        self._changed.update(blocks)
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                self._owned[block] = 1
            else:
                self._owned[block] += 1

    def publish(self, block: int, key: Key) -> None:
        """Name the content of a full owned block. A second block with the same name stays private."""
        if key not in self._by_key and block not in self._key_of:
            self._by_key[key] = block
            self._key_of[block] = key
            self._changed.add(block)

    def disown(self, blocks: Iterable[int]) -> None:
        """Forget the names of these owned blocks: their content is suspect and must not be attached again."""
        for block in blocks:
            key = self._key_of.pop(block, None)
            self._changed.add(block)
            if key is not None:
                del self._by_key[key]

    def references(self, block: int) -> int:
        """How many block tables hold it."""
        return self._owned.get(block, 0)

    def owned_blocks(self) -> Iterable[int]:
        """Each once, in no particular order."""
        return self._owned.keys()

    def cached_blocks(self) -> Iterable[int]:
        """The one that is evicted next comes first."""
        return self._cached.keys()

    def counts(self) -> BlockCounts:
        return BlockCounts(free=len(self._free), cached=len(self._cached), owned=len(self._owned), total=self.total)

    def check_step(self, tables: Iterable[Sequence[int]]) -> None:
        """Check after every step, in production too, that no block is lost; recount references as often as is cheap.

        With 64 sequences of 20 blocks a recount takes 0.04 ms, and it grows with their length. Up to RECOUNTED owned
        blocks are recounted in every step, n times as many in every n-th step.
        """
        self._check_sizes()
        if self._steps_to_recount > 0:
            self._steps_to_recount -= 1
            return
        self._steps_to_recount = len(self._owned) // RECOUNTED
        self.check(tables)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Recount every reference from the block tables of all sequences.

        Free, cached and owned are separate containers, so their sizes are an independent count.
        """
        self._check_sizes()
        recount = Counter(chain.from_iterable(tables))
        # A Counter's own comparison runs in Python and costs as much as a small plan.
        if dict.__ne__(recount, self._owned):  # pyright: ignore[reportUnknownMemberType]  # of a dict of anything
            wrong = sorted(block for block in recount | self._owned if recount[block] != self._owned.get(block, 0))
            raise LedgerError(f"references of KV blocks {wrong[:8]} differ from the block tables")

    def audit_changes(self, tables: Iterable[Sequence[int]]) -> None:
        """`audit`, but only of the blocks that changed since the last one.

        That takes a set operation or two per block. All blocks of a large cache would take milliseconds.
        """
        self.check(tables)
        self._audit(self._changed)
        self._changed.clear()

    def audit(self, tables: Iterable[Sequence[int]]) -> None:
        """`check`, also that no block is in two places and each name leads to its block. Tests audit all blocks."""
        self.check(tables)
        self._audit({*range(self.total), *self._free, *self._cached, *self._owned, *self._key_of})
        self._changed.clear()

    def _check_sizes(self) -> None:
        if len(self._free) + len(self._cached) + len(self._owned) != self.total:
            raise LedgerError(f"KV blocks do not add up: {self.counts()}")

    def _audit(self, blocks: AbstractSet[int]) -> None:
        free, cached, owned = (blocks & place.keys() for place in (self._free, self._cached, self._owned))
        if len(free) + len(cached) + len(owned) != len(blocks) or free | cached | owned != blocks:
            raise LedgerError("a KV block is in two places or in none")
        named = blocks & self._key_of.keys()
        if len(self._by_key) != len(self._key_of) or any(
            self._by_key.get(self._key_of[block]) != block for block in named
        ):
            raise LedgerError("the names of KV blocks and the blocks of names differ")
        if not cached <= named <= cached | owned:
            raise LedgerError("a cached KV block has no name, or a free one has one")
