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
    Failed,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    StreamEvent,
    Token,
    TokenLogprob,
    Usage,
)
from ...protocol.openai_responses import OPENAI_REASON, ChunkChoice, UsageBody, usage_body
from ..errors import error_of
from ..generation.asked import Pieces
from ..generation.sse import encode, one_line
from .dialect import Reply

DONE = b"data: [DONE]\n\n"


class Chunks(Pieces):
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
        spelt = encode(text)
        return b"%b%b%b" % (prefix, spelt if spelt.isascii() else one_line(spelt), suffix)

    def failed(self, error: ApiError) -> bytes:
        """The end of a failed stream: no [DONE] follows."""
        return b"data: " + encode(error.body()) + b"\n\n"

    def _event(self, event: StreamEvent) -> bytes:
        if isinstance(event, Token):
            if event.kind != "text":
                return self._other(event)
            if not event.logprobs and not event.token_ids:
                return self.text(event.index, event.text, event.tokens)
            self._completion_tokens += event.tokens
            return self._token(event.index, event.text, event.logprobs, event.token_ids)
        if isinstance(event, ChoiceFinished):
            self._completion_tokens += event.stop_tokens
            return self._finish(event.index, event.reason, event.stop_reason)
        if isinstance(event, Started):
            self._prompt_tokens = event.prompt_tokens
            return self._start()
        if isinstance(event, Finished):
            return self._end(event.reason, event.usage)
        if isinstance(event, PromptTokens):
            return self._prompt(event)
        assert isinstance(event, Failed), event  # vectors have no stream
        return self.failed(error_of(event))

    def _start(self) -> bytes:
        dialect = self._reply.dialect
        if dialect.opening is None:
            return b""
        choices = [dialect.chunk_choice(index=index, text=dialect.opening) for index in sorted(self._open)]
        return b"".join([self._chunk(choice) for choice in choices])

    def _prompt(self, prompt: PromptTokens) -> bytes:
        dialect, fields = self._reply.dialect, self._reply.prompt_fields(prompt)
        if dialect.prompt_in_choice:
            return self._chunk(dialect.chunk_choice(index=prompt.index, text=dialect.no_text, **fields))
        choice = dialect.chunk_choice(index=prompt.index, text=dialect.no_text)
        return _event(self._reply.chunk((choice,), self._usage(), fields)) if prompt.index == 0 else b""

    def _token(
        self, index: int, text: str, logprobs: tuple[TokenLogprob, ...] = (), token_ids: tuple[int, ...] = ()
    ) -> bytes:
        dialect = self._reply.dialect
        scores = dialect.logprobs(logprobs) if logprobs else None
        return self._chunk(
            dialect.chunk_choice(index=index, text=dialect.delta(text), logprobs=scores, token_ids=token_ids or UNSET)
        )

    def _other(self, token: Token) -> bytes:
        """A piece of a thought or of a call."""
        self._completion_tokens += token.tokens
        if not (token.text or token.starts or token.logprobs or token.token_ids or self._continuous_usage):
            return b""
        dialect = self._reply.dialect
        scores = dialect.logprobs(token.logprobs) if token.logprobs else None
        delta = dialect.other_delta(token) if token.text or token.starts else dialect.no_text
        token_ids = token.token_ids or UNSET
        return self._chunk(dialect.chunk_choice(index=token.index, text=delta, logprobs=scores, token_ids=token_ids))

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
    return b"data: " + one_line(encode(chunk)) + b"\n\n"
