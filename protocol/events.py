"""The events of a stream: the detokenizer writes them, the outbox holds them, SSE and WebSocket send them.

Order of one stream: Started · PromptTokens? · Token* (choices interleaved) · ChoiceFinished per choice ·
one Finished or Failed. A pooled request has one Vector per choice in place of tokens.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from .message import Message

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "deadline", "stalled", "error"]


class TopLogprob(Struct, frozen=True, array_like=True):
    """A token, its log probability and its text as bytes (one token's text need not be valid UTF-8)."""

    token_id: int
    logprob: float
    text: bytes = b""


class TokenLogprob(Struct, frozen=True, kw_only=True):
    """Log probability (natural, of the raw logits) of a token and of the most probable ones at its position."""

    token_id: int
    logprob: float | None  # None for the first token of an echoed prompt: nothing precedes it
    top: tuple[TopLogprob, ...] = ()
    rank: int = 0  # of a prompt's token: 1 is the most probable one; 0 is not known
    text: bytes = b""
    text_offset: int = 0  # characters before this token in the choice's text (completions dialect)
    stops: bool = False  # a stop token: generated, but not part of the answer's text


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of a request. Tokens sampled past a stop string are not counted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timing(Struct, frozen=True, kw_only=True):
    """Seconds of the phases of one request; None where a phase was never reached."""

    queued: float | None = None  # arrival to first planned chunk
    ttft: float | None = None  # arrival to first token's text
    total: float | None = None


class Event(Message, frozen=True, kw_only=True):
    """Base of all events of a client's stream."""

    id: str


class Started(Event, frozen=True, kw_only=True):
    """The first step of the request is planned; until then it waited."""

    model: str
    prompt_tokens: int  # of all prompts


class PromptTokens(Event, frozen=True, kw_only=True):
    """The prompt of one choice as the model reads it; sent only if asked for, before the choice's tokens."""

    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if they are asked for


class Vector(Event, frozen=True, kw_only=True):
    """What became of one prompt of a pooled request: its embedding, or a classifier's logits, as float32 values."""

    index: int
    values: bytes


class CallStart(Struct, frozen=True, kw_only=True, array_like=True):
    """A tool call begins: calls of one choice are numbered from 0. Its arguments follow, in pieces of JSON text."""

    call: int
    id: str
    name: str


class Token(Event, frozen=True, kw_only=True):
    """Text of one or more tokens of one choice. `tokens` counts the ids covered (flow control counts these).

    With the kind `tool`, `text` is a piece of the arguments of call number `call`. The first piece of a call may be
    empty and has `starts`. All pieces of a call that ended are together one JSON object.
    """

    index: int
    text: str
    tokens: int
    kind: Literal["text", "reasoning", "tool"] = "text"
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()  # only if asked for; with the stop token, which has no text
    call: int = 0
    starts: CallStart | None = None


class ChoiceFinished(Event, frozen=True, kw_only=True):
    """One choice is complete; `stop_reason` is the stop string or token id that matched, if any."""

    index: int
    reason: FinishReason
    stop_reason: str | int | None = None
    stop_tokens: int = 0  # 1 if a stop token ended it: generated and counted, but without text, so in no Token


class Finished(Event, frozen=True, kw_only=True):
    """Terminal: complete, or ended from outside with what it has. `reason` is the last choice's."""

    reason: FinishReason
    usage: Usage
    timing: Timing = Timing()


class Failed(Event, frozen=True, kw_only=True):
    """Terminal: the request ended with an error of the registry (`protocol.errors`)."""

    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None


StreamEvent = Started | PromptTokens | Vector | Token | ChoiceFinished | Finished | Failed
TerminalEvent = Finished | Failed


class Sink(Protocol):
    """What the waiting reader of a stream leaves with its outbox."""

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        """Events, then the text of `tokens` tokens of one choice behind them; with 0 tokens there is none.

        Nearly always there is only the text. `events` is the outbox's own list: copy what you keep. False: the reader
        must wake up and handle the rest.
        """
        ...
