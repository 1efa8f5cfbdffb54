"""The turns of a conversation as OpenAI's clients send them, distinguished by `role`.

Clients send an assistant's answer back as they got it, with every field the API ever had. Fields that were null in the
answer are accepted as null and ignored.
"""

from typing import Annotated

from msgspec import Meta, Struct

from .requests import ParticipantName, ToolCall, ToolCallId

MAX_PARTS = 4096


class TextPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


TextContent = str | Annotated[list[TextPart], Meta(max_length=MAX_PARTS)]


class SystemMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="system"):
    content: TextContent
    name: ParticipantName | None = None


class DeveloperMessage(SystemMessage, frozen=True, kw_only=True, tag="developer"):
    """OpenAI's newer name for the system's turn."""


class UserMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="user"):
    content: TextContent
    name: ParticipantName | None = None


class AssistantMessage(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="assistant"
):
    content: TextContent | None = None
    name: ParticipantName | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[str], Meta(max_length=0)] | None = None


class ToolMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="tool"):
    content: TextContent
    tool_call_id: ToolCallId
    name: ParticipantName | None = None


MessageBody = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
