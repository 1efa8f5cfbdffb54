"""A streamed answer in Ollama's form: a line of JSON for each piece of text, and a last one that is `done`.

A line cannot be a comment. So while nothing is said an empty piece is sent, which clients append like any other.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ...protocol.errors import ApiError
from ...protocol.events import ChoiceFinished, Failed, Finished, StreamEvent, Token
from ...protocol.explanation import Explanation
from ...protocol.ollama_responses import OllamaError, end_fields
from ..errors import error_of
from ..exchange import Field
from ..generation.asked import Pieces
from ..generation.collected import CollectedCall
from ..generation.sse import encode, one_line
from .answer import OllamaReply, ollama_calls

NDJSON: Final = b"application/x-ndjson"


class OllamaLines(Pieces):
    """Keeps the call whose arguments are still coming: clients want it whole."""

    __slots__ = ("_call", "_calls", "_end", "_reply", "_spliced")

    fields: tuple[Field, ...] = (
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"content-type", NDJSON),
    )

    def __init__(self, reply: OllamaReply) -> None:
        self._reply = reply
        key = b'"content":' if reply.chat else b'"response":'
        head, tail = _line(reply.piece()).rsplit(key + b'""', 1)
        self._spliced = head + key, tail
        self._call: CollectedCall | None = None
        self._calls = 0
        self._end: ChoiceFinished | None = None

    @property
    def keep_alive(self) -> bytes:
        return _line(self._reply.piece())

    def encode(self, events: Sequence[StreamEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def text(self, index: int, text: str, tokens: int) -> bytes:
        if not text:  # held back: it may begin a stop string or a character
            return b""
        spelt = encode(text)
        before, after = self._spliced
        return b"%b%b%b%b" % (self._flush(), before, spelt if spelt.isascii() else one_line(spelt), after)

    def failed(self, error: ApiError) -> bytes:
        return _line(OllamaError(error=error.message))

    def explained(self, explanation: Explanation) -> bytes:
        """An empty piece with one more field."""
        return b'%b,"triolet_explain":%b}\n' % (self.keep_alive.rstrip()[:-1], encode(explanation))

    def _event(self, event: StreamEvent) -> bytes:
        if isinstance(event, Token):
            return self._token(event)
        if isinstance(event, ChoiceFinished):
            self._end = event
            return self._flush()
        if isinstance(event, Finished):
            reason = self._end.reason if self._end else event.reason
            return self._flush() + _line(self._reply.piece(**end_fields(event, reason)))
        if isinstance(event, Failed):
            return self.failed(error_of(event))
        return b""  # nothing is said yet

    def _token(self, token: Token) -> bytes:
        if token.kind == "tool":
            return self._piece_of_call(token)
        if not token.logprobs and token.kind == "text":
            return self.text(token.index, token.text, token.tokens)
        if not token.logprobs and not token.text:
            return b""
        text, thinking = (token.text, "") if token.kind == "text" else ("", token.text)
        return self._flush() + _line(self._reply.piece(text, thinking, logprobs=token.logprobs))

    def _piece_of_call(self, token: Token) -> bytes:
        before = b""
        if token.starts is not None:
            before = self._flush()
            self._call = CollectedCall(token.starts)
        assert self._call is not None, "a call begins before its arguments"
        self._call.pieces.append(token.text)
        return before

    def _flush(self) -> bytes:
        """The call before: nothing more of it comes."""
        call, self._call = self._call, None
        if call is None:
            return b""
        self._calls += 1
        calls, cut = ollama_calls([call], self._calls - 1)
        return _line(self._reply.piece(cut, calls=calls))


def _line(struct: msgspec.Struct) -> bytes:
    return one_line(encode(struct)) + b"\n"
