"""The one place where a stream's events wait for their reader.

Contract: `push` never waits and is called by the engine's side only; `drain` waits until something is there and takes
all of it, so a step that fills 64 outboxes wakes each reader once, however many events it brought. After the terminal
event was drained, `drain` raises `trio.EndOfChannel`. One reader per outbox.

Bound: text is only generated on credit, and the gateway grants no more than the outbox's size, so at most that many
tokens, and a fixed number of other events per choice, ever wait here. The outbox knows nothing of that accounting: it
reports how many tokens were taken, and the gateway turns this into credit.
"""

from collections.abc import Callable

import trio

from ..protocol.events import Failed, Finished, StreamEvent, Token


class Outbox:
    """A request's events, in order, from the engine to whoever writes them to the client."""

    def __init__(self, id: str, on_taken: Callable[[int], None]) -> None:
        self.id = id
        self._on_taken = on_taken
        self._events: list[StreamEvent] = []
        self._tokens = 0
        self._ended = False  # the terminal event was pushed
        self._reader = trio.lowlevel.ParkingLot()

    @property
    def tokens_waiting(self) -> int:
        return self._tokens

    @property
    def ended(self) -> bool:
        return self._ended

    def push(self, event: StreamEvent) -> None:
        """Append an event and wake the reader. Nothing may follow a terminal event."""
        assert not self._ended, f"{type(event).__name__} after the terminal event of {self.id}"
        if isinstance(event, Token):
            self._tokens += event.tokens
        elif isinstance(event, Finished | Failed):
            self._ended = True
        self._events.append(event)
        self._reader.unpark()

    async def drain(self) -> tuple[StreamEvent, ...]:
        """Wait for events and take all of them. Cancelled before it returns, it took none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._events:
            if self._ended:
                raise trio.EndOfChannel
            await self._reader.park()
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        events, self._events = tuple(self._events), []
        taken, self._tokens = self._tokens, 0
        if taken:
            self._on_taken(taken)
        return events
