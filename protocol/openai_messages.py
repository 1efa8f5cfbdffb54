"""The turns of a conversation as OpenAI's clients send them, distinguished by `role`.

Clients send an assistant's answer back as they got it, with every field that their library added. Fields that repeat
the content or are the client's own notes are declared `Hint`: they may have any value and change nothing.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

MAX_PARTS = 4096

# Of a speaker or a function. As OpenAI's: any letters, but no spaces and nothing that could be markup.
ParticipantName = Annotated[str, Meta(pattern=r"^[^\s<|\\/>]{1,128}$(?!\n)")]
ToolCallId = Annotated[str, Meta(min_length=1, max_length=128)]
Hint = Annotated[Raw, Meta(description="Accepted with any value; changes nothing.")] | UnsetType


class TextPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]  # a field: msgspec does not ask for the tag of a Struct outside a union
    text: str
    cache_control: Hint = UNSET


class AnswerPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the parts of an assistant's message."""


class AnswerTextPart(AnswerPart, frozen=True, kw_only=True, tag="text"):
    text: str
    cache_control: Hint = UNSET


class RefusalPart(AnswerPart, frozen=True, kw_only=True, tag="refusal"):
    """What an assistant said instead of an answer; to the model it is text like any other."""

    refusal: str


TextContent = str | Annotated[list[TextPart], Meta(max_length=MAX_PARTS)]


class FunctionCallBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function of a tool call in the conversation so far; `arguments` is JSON text, as OpenAI sends it."""

    name: ParticipantName
    arguments: str
    parsed_arguments: Hint = UNSET


class ToolCallBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: ToolCallId
    function: FunctionCallBody
    type: Literal["function"] = "function"
    index: Hint = UNSET
    cache_control: Hint = UNSET
    extra_content: Hint = UNSET
    provider_specific_fields: Hint = UNSET


class Turn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    """What the turns of all roles have in common."""

    name: ParticipantName | None = None
    cache_control: Hint = UNSET
    provider_specific_fields: Hint = UNSET


class SystemMessage(Turn, frozen=True, kw_only=True, tag="system"):
    content: TextContent


class DeveloperMessage(SystemMessage, frozen=True, kw_only=True, tag="developer"):
    """OpenAI's newer name for the system's turn."""


class UserMessage(Turn, frozen=True, kw_only=True, tag="user"):
    content: TextContent


class AssistantMessage(Turn, frozen=True, kw_only=True, tag="assistant"):
    content: str | Annotated[list[AnswerTextPart | RefusalPart], Meta(max_length=MAX_PARTS)] | None = None
    tool_calls: Annotated[list[ToolCallBody], Meta(max_length=128)] | None = None
    function_call: FunctionCallBody | None = None
    refusal: str | None = None
    reasoning_content: Annotated[str, Meta(description="For the chat template.")] | None = None
    reasoning: Annotated[str, Meta(description="Another name for reasoning_content.")] | None = None
    audio: None = None
    annotations: Hint = UNSET
    images: Hint = UNSET
    parsed: Hint = UNSET
    reasoning_details: Hint = UNSET
    thinking_blocks: Hint = UNSET


class ToolMessage(Turn, frozen=True, kw_only=True, tag="tool"):
    content: TextContent
    tool_call_id: ToolCallId


class FunctionMessage(Turn, frozen=True, kw_only=True, tag="function"):
    """OpenAI's older form of a tool's answer. It answers the `function_call` of the turn before it."""

    content: TextContent


MessageBody = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
