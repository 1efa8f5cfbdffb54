"""The turns of a conversation as OpenAI's clients send them, told apart by `role`.

Clients send an assistant's answer back as they got it, with every field the API ever had: those that were null there
are accepted as null and mean nothing.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

MAX_PARTS = 4096
NAME = r"^[A-Za-z0-9_.:-]{1,128}$(?!\n)"

Name = Annotated[str, Meta(pattern=NAME)]


class TextPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


Content = str | Annotated[list[TextPart], Meta(max_length=MAX_PARTS)]


class FunctionCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    arguments: str


class ToolCallBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=128)]
    function: FunctionCall
    type: Literal["function"] = "function"


class SystemMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="system"):
    content: Content
    name: Name | None = None


class DeveloperMessage(SystemMessage, frozen=True, kw_only=True, tag="developer"):
    """OpenAI's newer name for the system's turn."""


class UserMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="user"):
    content: Content
    name: Name | None = None


class AssistantMessage(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="assistant"
):
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCallBody], Meta(max_length=128)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[str], Meta(max_length=0)] | None = None


class ToolMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: Annotated[str, Meta(min_length=1, max_length=128)]
    name: Name | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
