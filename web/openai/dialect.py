"""The differences between chat and completions, as one `Dialect` value each. All other code serves both.

`Reply` holds what every piece of one answer repeats.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ...protocol.events import PromptTokens, Token, TokenLogprob
from ...protocol.openai_requests import ChatBody, CompletionBody, GenerateBody
from ...protocol.openai_responses import (
    AnswerBody,
    AnswerChoice,
    AnswerMessage,
    CalledFunction,
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
    FunctionDelta,
    MessageToolCall,
    ToolCallDelta,
    UsageBody,
)
from ...protocol.requests import Generate
from ..generation.asked import Origin, ServedModel
from ..generation.collected import CollectedChoice
from .logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from .request import generate_from_chat, generate_from_completion

PromptFields = dict[str, Any]  # Any: of two fields with different types
NO_PROMPT: Final[PromptFields] = {}
Body = TypeVar("Body", bound=GenerateBody)


class Dialect(NamedTuple, Generic[Body]):
    decoder: msgspec.json.Decoder[Body]
    generate: Callable[[Body, ServedModel, Origin], Generate]
    id_prefix: str
    logprobs: Callable[[Iterable[TokenLogprob]], ChatLogprobs | CompletionLogprobs]

    # For a whole answer.
    answer: type[AnswerBody]
    answer_choice: type[AnswerChoice]
    message: Callable[[CollectedChoice], AnswerMessage | str]  # makes the `text` of a choice

    # For a streamed answer.
    chunk: type[AnswerBody]
    chunk_choice: type[ChunkChoice]
    delta: Callable[[str], Delta | str]  # makes the `text` of a choice
    other_delta: Callable[[Token], Delta | str]  # the same of a thought or a call
    text_key: bytes  # before the text in an encoded chunk
    no_text: Delta | str  # in a choice's last chunk
    opening: Delta | None  # in a choice's first chunk, if there is one before its text

    prompt_in_choice: bool  # the prompt's ids and log probabilities are in a choice; else beside the choices


def _message(choice: CollectedChoice) -> AnswerMessage:
    calls = [
        MessageToolCall(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))
        for call in choice.calls
    ]
    thoughts = choice.thoughts or UNSET
    return AnswerMessage(
        content=choice.text or (None if calls else ""),
        reasoning_content=thoughts,
        reasoning=thoughts,
        tool_calls=calls or UNSET,
    )


def _text(choice: CollectedChoice) -> str:
    return choice.text


def _delta(text: str) -> Delta:
    return Delta(content=text)


def _other_delta(token: Token) -> Delta:
    if token.kind == "reasoning":
        return Delta(reasoning_content=token.text, reasoning=token.text)
    piece = FunctionDelta(arguments=token.text)
    if token.starts is None:
        return Delta(tool_calls=[ToolCallDelta(index=token.call, function=piece)])
    function = msgspec.structs.replace(piece, name=token.starts.name)
    call = ToolCallDelta(index=token.call, id=token.starts.id, type="function", function=function)
    return Delta(tool_calls=[call])


def _only_text(token: Token) -> str:
    raise AssertionError(f"a completion has no part of the kind {token.kind!r}")


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
    other_delta=_other_delta,
    text_key=b'"content":',
    no_text=Delta(),
    opening=Delta(role="assistant", content=""),
    prompt_in_choice=False,
)
COMPLETIONS: Final = Dialect(
    decoder=msgspec.json.Decoder(CompletionBody),
    generate=generate_from_completion,
    id_prefix="cmpl-",
    logprobs=completion_logprobs,
    answer=Completion,
    answer_choice=CompletionChoice,
    message=_text,
    chunk=CompletionChunk,
    chunk_choice=CompletionChunkChoice,
    delta=str,
    other_delta=_only_text,
    text_key=b'"text":',
    no_text="",
    opening=None,
    prompt_in_choice=True,
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
    token_ids: bool = False
    prompt_logprobs: bool = False
    best: int = 1  # so many choices of a prompt are in the answer, of those that are generated
    of: int = 1
    beams: bool = False  # they come best first

    def whole(
        self, choices: tuple[AnswerChoice, ...], usage: UsageBody, prompt: PromptFields = NO_PROMPT
    ) -> AnswerBody:
        return self.dialect.answer(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage, **prompt
        )

    def chunk(
        self, choices: tuple[ChunkChoice, ...], usage: UsageBody | UnsetType | None, prompt: PromptFields = NO_PROMPT
    ) -> AnswerBody:
        return self.dialect.chunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage, **prompt
        )

    def prompt_fields(self, prompt: PromptTokens | None) -> PromptFields:
        """What the client asked to get of the prompt, under the names of the API."""
        fields: PromptFields = {}
        if prompt is not None and self.token_ids:
            fields["prompt_token_ids"] = prompt.token_ids
        if prompt is not None and self.prompt_logprobs:
            fields["prompt_logprobs"] = prompt_logprobs(prompt.logprobs)
        return fields
