"""The events of one request, one after another, for the commands that hold an engine themselves."""

from collections.abc import AsyncIterator

import trio

from ..actors.gateway.outbox import Outbox
from ..protocol.events import StreamEvent


async def events_of(outbox: Outbox) -> AsyncIterator[StreamEvent]:
    """Every event up to the terminal one. Holds no scope across its yields, so it may be left at any time."""
    while True:
        try:
            taken = await outbox.drain()
        except trio.EndOfChannel:
            return
        for event in taken:
            yield event
