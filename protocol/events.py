"""The events of a stream: the detokenizer writes them, the outbox holds them, SSE and WebSocket send them.

Order of one stream: Started · Token* (choices interleaved) · ChoiceFinished per choice · one Finished or Failed.
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
    text: bytes = b""
    text_offset: int = 0  # characters before this token in the choice's text (completions dialect)


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


class Token(Event, frozen=True, kw_only=True):
    """Text of one or more tokens of one choice. `tokens` counts the ids covered (flow control counts these)."""

    index: int
    text: str
    tokens: int
    kind: Literal["text", "reasoning", "tool"] = "text"
    logprobs: tuple[TokenLogprob, ...] = ()


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


StreamEvent = Started | Token | ChoiceFinished | Finished | Failed
TerminalEvent = Finished | Failed


class Sink(Protocol):
    """What the waiting reader of a stream leaves with its outbox."""

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        """Events, then the text of `tokens` tokens of one choice behind them; with 0 tokens there is none.

        Nearly always there is only the text. `events` is the outbox's own list: copy what you keep. False: the reader
        must wake up and handle the rest.
        """
        ...
