"""The queue in which a stream's events wait for their reader.

Contract: `put` and `put_text` store and never wait; `flush` delivers and must follow at the end of a step. A waiting
reader may leave a sink, to which `flush` then writes for it. So a step costs a stream no turn of the event loop as long
as its client keeps up. Otherwise `flush` wakes the reader once per step, and `drain` takes everything. The terminal
event always wakes the reader; after it was drained, `drain` raises `trio.EndOfChannel`. One reader per outbox.

Waiting text is joined with later text of the same choice: a slow reader gets larger pieces, not more of them.

Bound: text is generated only on credit, and the gateway grants at most the outbox's size. So at most that many tokens,
those that a grammar forces behind the last of them (`MAX_FORCED` in protocol/steps.py), and a fixed number of other
events per choice, wait here. The answers of a beam search come at once, and have at most the context's tokens each. The
outbox does no accounting: it reports how many tokens were taken, and `credit.py` turns this into credit.
"""

from collections.abc import Callable

import trio

from ...protocol.events import Failed, Finished, Sink, StreamEvent, Token


class Outbox:
    """A request's events, in order, on their way from the engine to the code that writes them to the client."""

    __slots__ = (
        "_events", "_index", "_on_taken", "_reader", "_sink", "_text", "_text_tokens", "_tokens", "ended", "id",
    )  # fmt: skip

    def __init__(self, id: str, on_taken: Callable[[int], None]) -> None:
        self.id = id
        self.ended = False  # the terminal event was put
        self._on_taken = on_taken
        self._events: list[StreamEvent] = []
        self._tokens = 0  # in the events
        self._index = 0  # of the choice whose text waits after the events
        self._text = ""
        self._text_tokens = 0  # of that text; 0: no text waits
        self._reader = trio.lowlevel.ParkingLot()
        self._sink: Sink | None = None  # of a waiting reader

    @property
    def tokens_waiting(self) -> int:
        return self._tokens + self._text_tokens

    def put(self, event: StreamEvent) -> None:
        """Append an event. Nothing may follow a terminal one."""
        assert not self.ended, f"{type(event).__name__} after the terminal event of {self.id}"
        self._seal()
        self._events.append(event)
        if isinstance(event, Token):
            self._tokens += event.tokens
        elif isinstance(event, Finished | Failed):
            self.ended = True

    def put_text(self, index: int, text: str, tokens: int) -> None:
        """The same as `put` of a `Token` with only these fields and at least one token.

        While the reader keeps up it makes no `Token`: one would add 0.7 to the 1.7 µs from a token's id to its socket.
        """
        assert not self.ended, f"text after the terminal event of {self.id}"
        if not self._text_tokens:
            self._index, self._text = index, text
        elif self._index == index:
            self._text += text
        else:
            self._seal()
            self._index, self._text = index, text
        self._text_tokens += tokens

    def flush(self) -> None:
        """Deliver what waits to the reader's sink; if that is not possible, wake the reader."""
        events, tokens = self._events, self._text_tokens
        if not events and not tokens:
            return
        sink = self._sink
        if sink is None or self.ended:
            self.wake()
            return
        try:
            keeps_up = sink.write(events, self._index, self._text, tokens)
        except Exception:  # the reader will get the same error, and knows whom to tell
            self.wake()
            return
        self._text_tokens = 0
        if events:
            tokens += self._tokens
            self._events, self._tokens = [], 0
        if tokens:
            self._on_taken(tokens)
        if not keeps_up:
            self.wake()

    async def drain(self, sink: Sink | None = None) -> tuple[StreamEvent, ...]:
        """Wait for events and take all of them; empty if the sink took them and wants the reader to wake up.

        If it is cancelled, it has taken none.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._events and not self._text_tokens:
            if self.ended:
                raise trio.EndOfChannel
            self._sink = sink
            try:
                await self._reader.park()
            finally:
                self._sink = None
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._seal()
        events, self._events = tuple(self._events), []
        taken, self._tokens = self._tokens, 0
        if taken:
            self._on_taken(taken)
        return events

    def wake(self) -> None:
        """Wake the reader if it waits, even if there are no events."""
        self._sink = None
        self._reader.unpark()

    def _seal(self) -> None:
        """Turn the waiting text into an event."""
        if self._text_tokens:
            self._events.append(Token(id=self.id, index=self._index, text=self._text, tokens=self._text_tokens))
            self._tokens += self._text_tokens
            self._text_tokens = 0
