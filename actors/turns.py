"""Passing a burst of messages on in one turn of the event loop.

An actor that awaited each message would hand a burst over one by one, and the scheduler would plan its first step, and
the one behind it, with what has come so far: sixteen requests submitted together began as a step of two.
"""

from collections.abc import Iterator
from typing import TypeVar

import trio

_Item = TypeVar("_Item")


def waiting(inbox: trio.MemoryReceiveChannel[_Item], most: int | None = None) -> Iterator[_Item]:
    """What lies in a channel now, at most so many."""
    while most is None or most > 0:
        try:
            item = inbox.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return
        yield item
        most = None if most is None else most - 1


async def pass_on(channel: trio.MemorySendChannel[_Item], item: _Item) -> None:
    """Send without a turn of the event loop where there is room; whoever calls it must take turns elsewhere."""
    try:
        channel.send_nowait(item)
    except trio.WouldBlock:
        await channel.send(item)
