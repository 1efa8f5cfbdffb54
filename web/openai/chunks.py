"""Encodes a stream's events as SSE bytes, in the chat or the completions dialect.

Nearly every event is one token's text. Its chunk is spliced from bytes prepared once per choice, which costs a tenth of
encoding the Struct. All other chunks are encoded from the Structs of protocol/openai_responses.py, and a test shows
that both give the same bytes.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ...protocol.errors import ApiError
from ...protocol.events import (
    ChoiceFinished,
    Finished,
    FinishReason,
    Started,
    StreamEvent,
    Token,
    TokenLogprob,
    Usage,
)
from ...protocol.openai_responses import OPENAI_REASON, ChunkChoice, UsageBody, usage_body
from ..errors import error_of
from .dialect import Reply

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment: clients skip it, proxies see traffic

_LINE_ENDS = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")

_encode = msgspec.json.Encoder().encode


class Chunks:
    """Encodes the events of one stream, in order; knows which choices are still open."""

    __slots__ = ("_completion_tokens", "_continuous_usage", "_open", "_prompt_tokens", "_reply", "_spliced")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._continuous_usage = reply.continuous_usage
        self._open = set(range(reply.choices))
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._spliced: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, events: Sequence[StreamEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def text(self, index: int, text: str, tokens: int) -> bytes:
        """The bytes for a `Token` with these fields alone."""
        if self._continuous_usage:  # otherwise only the end needs the count, which `Finished` has
            self._completion_tokens += tokens
            return self._token(index, text)
        if not text:  # held back: it may begin a stop string or a character
            return b""
        prefix, suffix = self._spliced.get(index) or self._prepare(index)
        spelt = _encode(text)
        return b"%b%b%b" % (prefix, spelt if spelt.isascii() else _one_line(spelt), suffix)

    @staticmethod
    def failed(error: ApiError) -> bytes:
        """The end of a failed stream: no [DONE] follows."""
        return b"data: " + _encode(error.body()) + b"\n\n"

    def _event(self, event: StreamEvent) -> bytes:
        if isinstance(event, Token):
            if not event.logprobs:
                return self.text(event.index, event.text, event.tokens)
            self._completion_tokens += event.tokens
            return self._token(event.index, event.text, event.logprobs)
        if isinstance(event, ChoiceFinished):
            self._completion_tokens += event.stop_tokens
            return self._finish(event.index, event.reason, event.stop_reason)
        if isinstance(event, Started):
            self._prompt_tokens = event.prompt_tokens
            return self._start()
        if isinstance(event, Finished):
            return self._end(event.reason, event.usage)
        return self.failed(error_of(event))

    def _start(self) -> bytes:
        dialect = self._reply.dialect
        if dialect.opening is None:
            return b""
        choices = [dialect.chunk_choice(index=index, text=dialect.opening) for index in sorted(self._open)]
        return b"".join([self._chunk(choice) for choice in choices])

    def _token(self, index: int, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        dialect = self._reply.dialect
        scores = dialect.logprobs(logprobs) if logprobs else None
        return self._chunk(dialect.chunk_choice(index=index, text=dialect.delta(text), logprobs=scores))

    def _finish(self, index: int, reason: FinishReason, stop_reason: str | int | None) -> bytes:
        self._open.discard(index)
        dialect = self._reply.dialect
        return self._chunk(
            dialect.chunk_choice(
                index=index,
                text=dialect.no_text,
                finish_reason=OPENAI_REASON[reason],
                stop_reason=stop_reason,
                triolet_finish_reason=reason,
            )
        )

    def _end(self, reason: FinishReason, usage: Usage) -> bytes:
        self._prompt_tokens, self._completion_tokens = usage.prompt_tokens, usage.completion_tokens
        parts = [self._finish(index, reason, None) for index in sorted(self._open)]
        if self._reply.include_usage:
            parts.append(_event(self._reply.chunk((), usage_body(usage))))
        return b"".join((*parts, DONE))

    def _chunk(self, choice: ChunkChoice) -> bytes:
        return _event(self._reply.chunk((choice,), self._usage()))

    def _usage(self) -> UsageBody | UnsetType | None:
        if self._continuous_usage:
            return usage_body(Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens))
        return None if self._reply.include_usage else UNSET

    def _prepare(self, index: int) -> tuple[bytes, bytes]:
        """The chunk of an empty text, split where the text goes."""
        key = self._reply.dialect.text_key
        head, tail = self._token(index, "").rsplit(key + b'""', 1)
        self._spliced[index] = head + key, tail
        return self._spliced[index]


def _event(chunk: msgspec.Struct) -> bytes:
    return b"data: " + _one_line(_encode(chunk)) + b"\n\n"


def _one_line(data: bytes) -> bytes:
    """Escapes characters that end a line in Unicode but not in SSE: clients using `str.splitlines` would cut there."""
    if not data.isascii():
        for character, escape in _LINE_ENDS:
            data = data.replace(character, escape)
    return data
