"""A stream's events as the bytes of SSE, in the chat or the completions dialect.

Nearly every event is one token's text. Its chunk is spliced from bytes prepared once per choice, which costs a tenth of
encoding the Struct; all other chunks are encoded from the Structs of protocol/openai_responses.py, and a test holds
the two ways equal.
"""

from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from ...protocol.errors import ErrorBody
from ...protocol.events import ChoiceFinished, FinishReason, Started, StreamEvent, Token, Usage
from ...protocol.openai_responses import (
    OPENAI_REASON,
    ChatChunk,
    ChatChunkChoice,
    CompletionChunk,
    CompletionChunkChoice,
    Delta,
    UsageBody,
    usage_body,
)
from .logprobs import chat_logprobs, completion_logprobs

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment: clients skip it, proxies and sockets see life

_LINE_ENDS = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")

_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """What every chunk of one stream repeats, and what its client asked for."""

    dialect: Literal["chat", "completion"]
    id: str
    created: int
    model: str
    choices: int
    include_usage: bool = False
    continuous_usage: bool = False


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

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for an event that is not terminal."""
        if isinstance(event, Token):
            if not event.logprobs:
                return self.text(event.index, event.text, event.tokens)
            self._completion_tokens += event.tokens
            return self._token(event)
        if isinstance(event, ChoiceFinished):
            self._completion_tokens += event.stop_tokens
            return self._finish(event.index, event.reason, event.stop_reason)
        if isinstance(event, Started):
            self._prompt_tokens = event.prompt_tokens
            if self._reply.dialect == "chat":
                role = Delta(role="assistant", content="")
                return b"".join(self._chat(ChatChunkChoice(index=index, delta=role)) for index in sorted(self._open))
        return b""

    def text(self, index: int, text: str, tokens: int) -> bytes:
        """The bytes for a `Token` with these fields alone."""
        if self._continuous_usage:  # nobody else asks before the end, which knows
            self._completion_tokens += tokens
            return self._token(Token(id="", index=index, text=text, tokens=tokens))
        if not text:  # held back: it may be the start of a stop string or of a character
            return b""
        prefix, suffix = self._spliced.get(index) or self._prepare(index)
        spelt = _encode(text)
        return b"%b%b%b" % (prefix, spelt if spelt.isascii() else _one_line(spelt), suffix)

    def finished(self, reason: FinishReason, usage: Usage) -> bytes:
        """The end of a stream that went well."""
        self._prompt_tokens, self._completion_tokens = usage.prompt_tokens, usage.completion_tokens
        parts = [self._finish(index, reason, None) for index in sorted(self._open)]
        if self._reply.include_usage:
            parts.append(self._last(usage_body(usage)))
        return b"".join((*parts, DONE))

    @staticmethod
    def failed(body: ErrorBody) -> bytes:
        """The end of a stream that broke: no [DONE] follows."""
        return b"data: " + _encode(body) + b"\n\n"

    def _finish(self, index: int, reason: FinishReason, stop_reason: str | int | None) -> bytes:
        self._open.discard(index)
        if self._reply.dialect == "chat":
            return self._chat(
                ChatChunkChoice(
                    index=index,
                    delta=Delta(),
                    finish_reason=OPENAI_REASON[reason],
                    stop_reason=stop_reason,
                    triolet_finish_reason=reason,
                )
            )
        return self._completion(
            CompletionChunkChoice(
                index=index,
                text="",
                finish_reason=OPENAI_REASON[reason],
                stop_reason=stop_reason,
                triolet_finish_reason=reason,
            )
        )

    def _token(self, token: Token) -> bytes:
        if self._reply.dialect == "chat":
            logprobs = chat_logprobs(token.logprobs) if token.logprobs else None
            return self._chat(ChatChunkChoice(index=token.index, delta=Delta(content=token.text), logprobs=logprobs))
        return self._completion(
            CompletionChunkChoice(
                index=token.index,
                text=token.text,
                logprobs=completion_logprobs(token.logprobs) if token.logprobs else None,
            )
        )

    def _chat(self, choice: ChatChunkChoice) -> bytes:
        id, created, model = self._reply.id, self._reply.created, self._reply.model
        return _event(ChatChunk(id=id, created=created, model=model, choices=[choice], usage=self._usage()))

    def _completion(self, choice: CompletionChunkChoice) -> bytes:
        id, created, model = self._reply.id, self._reply.created, self._reply.model
        return _event(CompletionChunk(id=id, created=created, model=model, choices=[choice], usage=self._usage()))

    def _last(self, usage: UsageBody) -> bytes:
        id, created, model = self._reply.id, self._reply.created, self._reply.model
        if self._reply.dialect == "chat":
            return _event(ChatChunk(id=id, created=created, model=model, choices=[], usage=usage))
        return _event(CompletionChunk(id=id, created=created, model=model, choices=[], usage=usage))

    def _usage(self) -> UsageBody | UnsetType | None:
        if self._continuous_usage:
            return usage_body(Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens))
        return None if self._reply.include_usage else UNSET

    def _prepare(self, index: int) -> tuple[bytes, bytes]:
        """The chunk of an empty text, cut where the text stands."""
        field = b'"content":' if self._reply.dialect == "chat" else b'"text":'
        head, tail = self._token(Token(id="", index=index, text="", tokens=0)).rsplit(field + b'""', 1)
        self._spliced[index] = head + field, tail
        return self._spliced[index]


def _event(chunk: ChatChunk | CompletionChunk) -> bytes:
    return b"data: " + _one_line(_encode(chunk)) + b"\n\n"


def _one_line(data: bytes) -> bytes:
    """Escapes what ends a line in Unicode but not in SSE: clients that split with `str.splitlines` would cut there."""
    if not data.isascii():
        for character, escape in _LINE_ENDS:
            data = data.replace(character, escape)
    return data
