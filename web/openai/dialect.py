"""The differences between chat and completions, as one `Dialect` value each. All other code serves both.

`Reply` holds what every piece of one answer repeats.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UnsetType

from ...protocol.events import TokenLogprob
from ...protocol.openai_requests import ChatBody, CompletionBody, GenerateBody
from ...protocol.openai_responses import (
    AnswerBody,
    AnswerChoice,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    Delta,
    UsageBody,
)
from ...protocol.requests import Generate
from .logprobs import chat_logprobs, completion_logprobs
from .request import Origin, ServedModel, generate_from_chat, generate_from_completion

Body = TypeVar("Body", bound=GenerateBody)


class Dialect(NamedTuple, Generic[Body]):
    decoder: msgspec.json.Decoder[Body]
    generate: Callable[[Body, ServedModel, Origin], Generate]
    id_prefix: str
    logprobs: Callable[[Iterable[TokenLogprob]], ChatLogprobs | CompletionLogprobs]

    # For a whole answer.
    answer: type[AnswerBody]
    answer_choice: type[AnswerChoice]
    message: Callable[[str], AnswerMessage | str]  # makes the `text` of a choice

    # For a streamed answer.
    chunk: type[AnswerBody]
    chunk_choice: type[ChunkChoice]
    delta: Callable[[str], Delta | str]  # makes the `text` of a choice
    text_key: bytes  # before the text in an encoded chunk
    no_text: Delta | str  # in a choice's last chunk
    opening: Delta | None  # in a choice's first chunk, if there is one before its text


def _message(text: str) -> AnswerMessage:
    return AnswerMessage(content=text)


def _delta(text: str) -> Delta:
    return Delta(content=text)


CHAT: Final = Dialect(
    decoder=msgspec.json.Decoder(ChatBody),
    generate=generate_from_chat,
    id_prefix="chatcmpl-",
    logprobs=chat_logprobs,
    answer=ChatCompletion,
    answer_choice=ChatChoice,
    message=_message,
    chunk=ChatChunk,
    chunk_choice=ChatChunkChoice,
    delta=_delta,
    text_key=b'"content":',
    no_text=Delta(),
    opening=Delta(role="assistant", content=""),
)
COMPLETIONS: Final = Dialect(
    decoder=msgspec.json.Decoder(CompletionBody),
    generate=generate_from_completion,
    id_prefix="cmpl-",
    logprobs=completion_logprobs,
    answer=Completion,
    answer_choice=CompletionChoice,
    message=str,
    chunk=CompletionChunk,
    chunk_choice=CompletionChunkChoice,
    delta=str,
    text_key=b'"text":',
    no_text="",
    opening=None,
)


class Reply(NamedTuple):
    """Values that every piece of one answer repeats, and options of its client."""

    dialect: Dialect[Any]  # Any: the answer does not use the body's type
    id: str
    created: int
    model: str
    choices: int
    include_usage: bool = False
    continuous_usage: bool = False

    def whole(self, choices: tuple[AnswerChoice, ...], usage: UsageBody) -> AnswerBody:
        return self.dialect.answer(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)

    def chunk(self, choices: tuple[ChunkChoice, ...], usage: UsageBody | UnsetType | None) -> AnswerBody:
        return self.dialect.chunk(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)
