"""Encodes a growing response's events as SSE bytes.

Nearly every event is a piece of the message's text. It is spliced from bytes prepared once per item; all others are
encoded from the Structs of protocol/response_answers.py, and a test shows that both give the same bytes.
"""

import time
from collections.abc import Sequence

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent, Token
from ...protocol.response_answers import OutputTextDelta, StreamedEvent
from ..errors import error_of
from ..generation.asked import Pieces
from ..generation.sse import encode, named_event, one_line
from .answer import GrowingResponse
from .output import OpenItem, OpenMessage


class ResponseEvents(Pieces):
    """Encodes the events of one stream, in order."""

    __slots__ = ("_answer", "_head", "_prepared_for", "_tail")

    def __init__(self, answer: GrowingResponse) -> None:
        self._answer = answer
        self._prepared_for: OpenItem | None = None
        self._head = self._tail = b""

    def encode(self, events: Sequence[StreamEvent]) -> bytes:
        return b"".join([named_event(said) for event in events for said in self.said(event)])

    def text(self, index: int, text: str, tokens: int) -> bytes:
        """The bytes for a `Token` with these fields alone."""
        item = self._answer.output.open
        if not isinstance(item, OpenMessage):
            return self.encode([Token(id="", index=index, text=text, tokens=tokens)])
        if not text:  # held back: it may begin a stop string or a character
            return b""
        item.add(text)
        if self._prepared_for is not item:
            self._prepare(item)
        spelt = encode(text)
        piece = spelt if spelt.isascii() else one_line(spelt)
        return b"%b%d%b%b%b" % (self._head, self._answer.number(), self._tail, piece, _END)

    def failed(self, error: ApiError) -> bytes:
        return b"".join([named_event(said) for said in self._answer.fail(error)])

    def said(self, event: StreamEvent) -> list[StreamedEvent]:
        """The stream's events that this one makes."""
        if isinstance(event, Token):
            return self._answer.token(event)
        if isinstance(event, Finished):
            return self._answer.finish(event, int(time.time()))
        if isinstance(event, Failed):
            return self._answer.fail(error_of(event))
        return self._answer.begin()

    def _prepare(self, item: OpenMessage) -> None:
        """The delta of an empty text, split where the number and the text go."""
        empty = OutputTextDelta(sequence_number=0, output_index=item.place, item_id=item.id, delta="")
        self._head, rest = named_event(empty).split(b"0", 1)
        self._tail = rest.removesuffix(b'""' + _END)
        self._prepared_for = item


_END = b',"logprobs":[]}\n\n'
