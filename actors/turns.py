"""Passes a burst of messages on in one turn of the event loop.

If an actor awaited each message, it would pass a burst on one by one, and the scheduler would plan its first two steps
with what had arrived so far: sixteen requests submitted together began with a step of two.
"""

from collections.abc import Iterator
from typing import TypeVar

import trio

_Item = TypeVar("_Item")


def waiting(inbox: trio.MemoryReceiveChannel[_Item], most: int | None = None) -> Iterator[_Item]:
    """The messages in a channel now, at most `most`."""
    while most is None or most > 0:
        try:
            item = inbox.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return
        yield item
        most = None if most is None else most - 1


async def pass_on(channel: trio.MemorySendChannel[_Item], item: _Item) -> None:
    """Send without a checkpoint if there is room. The caller must checkpoint elsewhere."""
    try:
        channel.send_nowait(item)
    except trio.WouldBlock:
        await channel.send(item)
