"""The one place where a stream's events wait for their reader.

Contract: `push`, `push_text` and `give_text` never wait and are called by the engine's side only; `drain` waits until
something is there and takes all of it, so a step that fills 64 outboxes wakes each reader once, however many events it
brought. Text that waits is joined to text of the same choice behind it: a reader that lags gets larger pieces, not more
of them. After the terminal event was drained, `drain` raises `trio.EndOfChannel`. One reader per outbox.

Bound: text is only generated on credit, and the gateway grants no more than the outbox's size, so at most that many
tokens, and a fixed number of other events per choice, ever wait here. The outbox knows nothing of that accounting: it
reports how many tokens were taken, and the gateway turns this into credit.

A reader may leave a sink while it waits: `flush`, which the engine calls once after each step, gives it the events in
the reader's stead. So a step costs a stream no turn of the event loop as long as its client keeps up. The terminal
event always wakes the reader.
"""

from collections.abc import Callable

import trio

from ...protocol.events import Failed, Finished, Sink, StreamEvent, Token


class Outbox:
    """A request's events, in order, from the engine to whoever writes them to the client."""

    __slots__ = (
        "_events",
        "_index",
        "_on_taken",
        "_reader",
        "_sink",
        "_text",
        "_text_tokens",
        "_tokens",
        "ended",
        "id",
    )

    def __init__(self, id: str, on_taken: Callable[[int], None]) -> None:
        self.id = id
        self.ended = False  # the terminal event was pushed
        self._on_taken = on_taken
        self._events: list[StreamEvent] = []
        self._tokens = 0  # in the events
        self._index = 0  # of the choice whose text waits behind the events
        self._text = ""
        self._text_tokens = 0  # of that text; 0: none waits
        self._reader = trio.lowlevel.ParkingLot()
        self._sink: Sink | None = None  # of a reader that waits

    @property
    def tokens_waiting(self) -> int:
        return self._tokens + self._text_tokens

    def push(self, event: StreamEvent) -> bool:
        """Append an event and wake the reader, unless it left a sink: then `flush` must follow, and True is returned.

        Nothing may follow a terminal event.
        """
        assert not self.ended, f"{type(event).__name__} after the terminal event of {self.id}"
        self._seal()
        self._events.append(event)
        if isinstance(event, Token):
            self._tokens += event.tokens
        elif isinstance(event, Finished | Failed):
            self.ended = True
        if self._sink is not None and not self.ended:
            return True
        self._wake()
        return False

    def push_text(self, index: int, text: str, tokens: int) -> bool:
        """As `push` of a `Token` with these fields alone, at least one token: without making one where it can."""
        assert not self.ended, f"text after the terminal event of {self.id}"
        if not self._text_tokens:
            self._index, self._text = index, text
        elif self._index == index:
            self._text += text
        else:
            self._seal()
            self._index, self._text = index, text
        self._text_tokens += tokens
        if self._sink is not None:
            return True
        self._wake()
        return False

    def give_text(self, index: int, text: str, tokens: int) -> None:
        """`push_text` and `flush` in one."""
        sink = self._sink
        if sink is None or self._text_tokens or self._events:
            if self.push_text(index, text, tokens):
                self.flush()
            return
        try:
            done = sink.take_text(index, text, tokens)
        except Exception:  # as in `flush`
            self.push_text(index, text, tokens)
            self._wake()
            return
        self._on_taken(tokens)
        if not done:
            self._wake()

    def flush(self) -> None:
        """Give what is there to the waiting reader's sink; wake the reader where that does not do."""
        sink = self._sink
        if sink is None or self.ended:
            return  # the reader has been woken, or has left
        taken = self._text_tokens
        try:
            if not self._events:
                if not taken:
                    return
                done = sink.take_text(self._index, self._text, taken)
                self._text_tokens = 0
            else:
                self._seal()
                done = sink.take(tuple(self._events))
                taken, self._tokens = self._tokens, 0
                self._events = []
        except Exception:  # the reader will meet the same error, and knows whom to tell
            self._wake()
            return
        if taken:
            self._on_taken(taken)
        if not done:
            self._wake()

    async def drain(self, sink: Sink | None = None) -> tuple[StreamEvent, ...]:
        """Wait for events and take all of them; none if the sink has taken them and wants the reader woken.

        Cancelled before it returns, it took none.
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
        return self._take()

    def nudge(self) -> None:
        """Wake the reader if it waits, with nothing where nothing is there."""
        self._wake()

    def _wake(self) -> None:
        self._sink = None
        self._reader.unpark()

    def _seal(self) -> None:
        """The text that waits becomes an event like others."""
        if self._text_tokens:
            self._events.append(Token(id=self.id, index=self._index, text=self._text, tokens=self._text_tokens))
            self._tokens += self._text_tokens
            self._text_tokens = 0

    def _take(self) -> tuple[StreamEvent, ...]:
        self._seal()
        events, self._events = tuple(self._events), []
        taken, self._tokens = self._tokens, 0
        if taken:
            self._on_taken(taken)
        return events
