"""How actors take what waits: bursts of messages in one turn of the event loop, and API keys in turn.

If an actor awaited each message, it would pass a burst on one by one, and the scheduler would plan its first two steps
with what had arrived so far: sixteen requests submitted together began with a step of two.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import trio

_Item = TypeVar("_Item")


def waiting(inbox: trio.MemoryReceiveChannel[_Item]) -> Iterator[_Item]:
    """The messages in a channel now."""
    while True:
        try:
            item = inbox.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return
        yield item


async def pass_on(channel: trio.MemorySendChannel[_Item], item: _Item) -> None:
    """Send without a checkpoint if there is room. The caller must checkpoint elsewhere."""
    try:
        channel.send_nowait(item)
    except trio.WouldBlock:
        await channel.send(item)


class LinesByKey(Generic[_Item]):
    """One line for each key; the first of each in turn. A flood of one key delays another's next by one item."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[_Item]] = {}  # by tenant; the first has the next turn
        self._items = 0

    def __len__(self) -> int:
        return self._items

    def add(self, tenant: str, item: _Item) -> None:
        self._lines.setdefault(tenant, deque()).append(item)
        self._items += 1

    def next(self) -> _Item:
        """Take the item whose turn it is; there must be one."""
        tenant = next(iter(self._lines))
        line = self._lines.pop(tenant)
        item = line.popleft()
        self._items -= 1
        if line:
            self._lines[tenant] = line  # behind the others
        return item

    def keep(self, wanted: Callable[[_Item], bool]) -> None:
        """Drop all others. Turns and the order in each line stay as they are."""
        lines = {tenant: deque(filter(wanted, line)) for tenant, line in self._lines.items()}
        self._lines = {tenant: line for tenant, line in lines.items() if line}
        self._items = sum(map(len, self._lines.values()))
