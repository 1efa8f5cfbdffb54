"""The pool of KV blocks against a model that anybody can check: any sequence of calls, of any owners."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from triolet.actors.scheduler.blocks import BlockPool
from triolet.actors.scheduler.prefix_keys import Key

TOTAL = 6
NAMES = [Key(bytes([number]) * 32) for number in range(4)]

NOTHING: object = multiple()  # pyright: ignore[reportUnknownVariableType]  hypothesis does not say of what


class BlocksAndTheirModel(RuleBasedStateMachine):
    """The model: who owns how many of each block, which block has which name, and who may still be found."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.owned = Counter[int]()
        self.named: dict[Key, int] = {}  # what a prefix finds; of one name, the first
        self.live: list[list[int]] = []

    def _taken(self, blocks: list[int]) -> list[int]:
        self.owned.update(blocks)
        self.live.append(blocks)
        return blocks

    @rule(target=tables, count=st.integers(1, 3))
    def allocate(self, count: int) -> object:
        room = TOTAL - len(+self.owned)
        if count > room:
            return NOTHING
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not any(self.owned[block] for block in blocks), "it was somebody's"
        self.named = {name: block for name, block in self.named.items() if block not in blocks}  # evicted
        return self._taken(list(blocks))

    @rule(target=tables, wanted=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    def attach(self, wanted: list[Key]) -> object:
        blocks = self.pool.match(wanted)
        expected = [self.named.get(name) for name in wanted]
        stop = expected.index(None) if None in expected else len(expected)
        assert blocks == expected[:stop]
        if not blocks:
            return NOTHING
        self.pool.attach(blocks)
        return self._taken(list(blocks))

    @precondition(lambda self: self.live)
    @rule(table=tables, name=st.sampled_from(NAMES))
    def publish(self, table: list[int], name: Key) -> None:
        if table not in self.live or table[-1] in self.named.values():
            return
        self.pool.publish(table[-1], name)
        self.named.setdefault(name, table[-1])

    @rule(table=consumes(tables))
    def release(self, table: list[int]) -> None:
        self.live.remove(table)
        self.pool.release(table)
        self.owned.subtract(table)

    @invariant()
    def the_ledger_is_the_models(self) -> None:
        self.pool.audit(self.live)
        assert self.pool.available == TOTAL - len(+self.owned)
        assert {block: self.pool.references(block) for block in range(TOTAL)} == {
            block: self.owned[block] for block in range(TOTAL)
        }


BlocksAndTheirModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBlocksAndTheirModel = BlocksAndTheirModel.TestCase
