"""BlockPool: nobody else owns a block, and the ledger notices when it does not balance."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.actors.scheduler.blocks import RECOUNTED, BlockPool, LedgerError, blocks_for
from triolet.actors.scheduler.prefix_keys import PrefixKeys

Namespace = tuple[str, str, str, str]  # tenant, adapter, cache salt, determinism


def test_a_token_beyond_a_full_block_needs_another_one() -> None:
    assert [blocks_for(tokens) for tokens in (0, 1, 64, 65, 128)] == [0, 1, 1, 2, 2]


def test_released_blocks_without_a_name_are_free_again() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    pool.release(blocks)
    assert (pool.counts().free, pool.counts().cached, pool.counts().owned) == (4, 0, 0)


def test_released_blocks_with_a_name_are_cached_and_count_as_available() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"first")
    pool.release(blocks)
    assert pool.available == 4
    assert pool.counts().cached == 1
    assert pool.match([b"first", b"second"]) == blocks[:1]


def test_free_blocks_are_taken_before_cached_ones_and_the_oldest_is_evicted_first() -> None:
    pool = BlockPool(3)
    for name in (b"old", b"young"):
        block = pool.allocate(1)
        pool.publish(block[0], name)
        pool.release(block)
    assert pool.evictions == 0
    pool.allocate(2)
    assert pool.evictions == 1
    assert pool.match([b"old"]) == []
    assert len(pool.match([b"young"])) == 1


def test_a_prefix_is_evicted_from_its_end() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, (b"a", b"ab", b"abc"), strict=True):
        pool.publish(block, key)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.match([b"a", b"ab", b"abc"]) == blocks[:2]


def test_an_attached_block_is_not_evicted_and_stays_until_its_last_owner_goes() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, b"shared")
    pool.attach([block])
    pool.release([block])
    assert pool.references(block) == 1
    assert pool.available == 1
    pool.release([block])
    assert pool.available == 2


def test_attaching_a_cached_block_takes_it_from_the_available_ones() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], b"x")
    pool.release(blocks)
    assert pool.idle(blocks) == 1
    pool.attach(blocks)
    assert pool.idle(blocks) == 0
    assert pool.available == 1


def test_the_second_block_of_one_name_stays_private() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, b"x")
    pool.publish(second, b"x")
    pool.release([first, second])
    assert pool.counts().cached == 1
    assert pool.match([b"x"]) == [first]


def test_a_block_with_suspect_content_is_not_found_again() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], b"x")
    pool.disown(blocks)
    pool.release(blocks)
    assert pool.match([b"x"]) == []
    assert pool.counts().cached == 0
    pool.audit(())


def test_releasing_a_block_twice_is_noticed_at_once() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(KeyError):
        pool.release(blocks)


@pytest.mark.parametrize(
    "tables",
    [[], [[0]], [[0, 1], [1]], [[0, 1, 2]], [[0, 2]]],
    ids=["leaked", "one leaked", "one reference too many", "a free block in a table", "another block"],
)
def test_the_recount_notices_what_the_tables_do_not_say(tables: list[list[int]]) -> None:
    pool = BlockPool(4)
    assert pool.allocate(2) == [0, 1]
    pool.check([[0], [1]])
    with pytest.raises(LedgerError):
        pool.check(tables)


def test_a_large_ledger_is_recounted_within_a_few_steps_and_a_lost_block_noticed_at_once() -> None:
    pool = BlockPool(4 * RECOUNTED)
    table = pool.allocate(3 * RECOUNTED)
    pool.check_step([table])
    for _ in range(3):
        pool.check_step([table[1:]])
    with pytest.raises(LedgerError):
        pool.check_step([table[1:]])
    pool._free.popitem()
    with pytest.raises(LedgerError):
        pool.check_step([table])


def _in_two_places(pool: BlockPool, block: int) -> None:
    pool._free.popitem()
    pool._free[block] = None


def _renamed(pool: BlockPool, block: int) -> None:
    pool._by_key[b"other"] = pool._by_key.pop(pool._key_of[block])


def _nameless(pool: BlockPool, block: int) -> None:
    del pool._by_key[pool._key_of.pop(block)]


def _out_of_range(pool: BlockPool, block: int) -> None:
    del pool._cached[block]
    pool._cached[99] = None


@pytest.mark.parametrize("fault", [_in_two_places, _renamed, _nameless, _out_of_range])
def test_both_audits_notice_a_fault_in_what_was_touched(fault: Callable[[BlockPool, int], None]) -> None:
    for audit in (BlockPool.audit, BlockPool.audit_changes):
        pool = BlockPool(8)
        blocks = pool.allocate(2)
        pool.publish(blocks[0], b"x")
        pool.release(blocks)
        fault(pool, blocks[0])
        with pytest.raises(LedgerError):
            audit(pool, ())


def test_an_audit_of_changes_looks_at_no_other_block() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"x")
    pool.release(blocks)
    pool.audit_changes(())
    _nameless(pool, blocks[0])
    pool.audit_changes(())
    with pytest.raises(LedgerError):
        pool.audit(())


def tokens(number: int) -> tuple[int, ...]:
    return tuple(range(number, number + 64))


@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.tuples(*[st.sampled_from(("", "a", "b", "ab"))] * 4),
    st.tuples(*[st.sampled_from(("", "a", "b", "ab"))] * 4),
)
def test_keys_are_equal_for_equal_prefixes_of_one_namespace_alone(
    first: list[int], second: list[int], one: Namespace, other: Namespace
) -> None:
    keys = PrefixKeys(b"secret")

    def chain(namespace: Namespace, blocks: list[int]) -> Iterator[bytes]:
        key = keys.root(*namespace)
        for block in blocks:
            yield (key := keys.extend(key, tokens(block)))

    for place, (left, right) in enumerate(zip(chain(one, first), chain(other, second), strict=False)):
        assert (left == right) == (one == other and first[: place + 1] == second[: place + 1])


def test_another_secret_gives_other_keys() -> None:
    one, other = PrefixKeys(b"one"), PrefixKeys(b"other")
    root = one.root("", "", "", "")
    assert root != other.root("", "", "", "")
    assert one.extend(root, tokens(0)) != other.extend(root, tokens(0))


def test_a_tenant_with_a_lone_surrogate_is_a_namespace_like_any_other() -> None:
    keys = PrefixKeys(b"secret")
    assert keys.root("\ud800", "", "", "") != keys.root("\ud801", "", "", "")


class PoolMachine(RuleBasedStateMachine):
    """Random use, against a model that is only lists."""

    @initialize(total=st.integers(1, 12))
    def start(self, total: int) -> None:
        self.pool = BlockPool(total)
        self.tables: list[list[int]] = []
        self.names: dict[int, bytes] = {}  # what the blocks hold

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        if count <= self.pool.available:
            table = self.pool.allocate(count)
            for block in table:
                self.names.pop(block, None)
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), name=st.integers(0, 5))
    def publish(self, data: st.DataObject, name: int) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        self.pool.publish(block, b"%d" % name)
        if self.pool.match([b"%d" % name]) == [block]:
            self.names[block] = b"%d" % name

    @rule(name=st.integers(0, 5))
    def attach(self, name: int) -> None:
        found = self.pool.match([b"%d" % name])
        assert all(self.names[block] == b"%d" % name for block in found)
        if found:
            self.pool.attach(found)
            self.tables.append(found)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def the_ledger_balances(self) -> None:
        if hasattr(self, "pool"):
            self.pool.audit_changes(self.tables)
            self.pool.audit(self.tables)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
