"""An answer as server-sent events with numbers, and the HTTP body that follows it.

Each event has `id: TOKEN:NUMBER`, so the last id that a client has seen names the answer and the place to go on from.
Comments have no number and are not kept. They end with their line, not with an empty one: some clients (OpenAI's for
Python) take an empty line behind a comment for an event, once an id was set.
"""

from collections.abc import AsyncGenerator, Sequence

import trio

from ...protocol.events import StreamEvent
from ...protocol.requests import Generate
from ..exchange import LastPiece
from .asked import Pieces
from .posting import Post
from .resumable_answer import ResumableAnswer

_END = b"\n\n"  # of an event; its JSON has no line ends


class EventMessages:
    """A dialect's pieces as an `Encoder`: a message is the events of one piece, perhaps none."""

    def __init__(self, pieces: Pieces) -> None:
        self.text = pieces.text
        self.failed = pieces.failed
        self._pieces = pieces

    def encode(self, events: Sequence[StreamEvent]) -> list[bytes]:
        return [self._pieces.encode(events)]


class EventAnswer(ResumableAnswer):
    def __init__(self, request: Generate, pieces: Pieces, seconds: float, longest: float) -> None:
        super().__init__(request, seconds, longest)
        self.pieces = pieces
        self._head = b"id: %b:" % self.token.encode()
        self._next = 0

    def cut(self, message: bytes) -> list[bytes]:
        events = message.split(_END)[:-1]
        first, self._next = self._next, self._next + len(events)
        return [b"%b%d\n%b\n\n" % (self._head, number, event) for number, event in enumerate(events, first)]


class EventFeed:
    """The body of an HTTP answer that follows: what was posted leaves with the next piece. Its `post` never writes."""

    def __init__(self, keep_alive: bytes, silence: float, *, at_once: bool) -> None:
        """`at_once`: the head of the answer leaves though there are no events yet."""
        self._keep_alive = keep_alive.rstrip(b"\n") + b"\n" if keep_alive.startswith(b":") else keep_alive
        self._silence = silence
        self._waiting: list[bytes] = []
        self._sent = trio.Event()  # of what waits
        self._news = trio.Event()
        self._ended = False
        if at_once:
            self._news.set()

    @property
    def post(self) -> Post:
        return self._post

    def _post(self, frame: bytes) -> trio.Event:
        self._waiting.append(frame)
        self._news.set()
        return self._sent

    def end(self) -> None:
        """What is posted in this turn of the event loop is the last."""
        self._ended = True

    async def body(self) -> AsyncGenerator[bytes, None]:
        ended = False
        while not ended:
            with trio.move_on_after(self._silence):
                await self._news.wait()
            self._news = trio.Event()
            piece, self._waiting, ended = b"".join(self._waiting) or self._keep_alive, [], self._ended
            leaving, self._sent = self._sent, trio.Event()
            yield LastPiece(piece) if ended else piece
            leaving.set()
