"""The bodies of Anthropic's Messages API as clients send them: names, types and the bounds of single fields.

Unknown fields are refused, but for notes to a service that this server is not (`Hint`). What the fields mean here is in
web/anthropic/request.py.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .openai_formats import JsonSchema
from .openai_messages import MAX_PARTS, Hint, ParticipantName, ToolCallId
from .openai_requests import MAX_INT32, MAX_MESSAGES, Count, Deadline, DisconnectPolicy, FirstTokenDeadline, neutral
from .openai_tools import MAX_TOOLS, FunctionName

Nothing = Annotated[Raw, neutral(None, [])] | UnsetType


class GivenBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of what a message holds."""

    cache_control: Hint = UNSET


class GivenText(GivenBlock, frozen=True, kw_only=True, tag="text"):
    text: str
    citations: Hint = UNSET


class SystemText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    cache_control: Hint = UNSET
    citations: Hint = UNSET


Blocks = Annotated[list[SystemText], Meta(max_length=MAX_PARTS)]


class GivenThinking(GivenBlock, frozen=True, kw_only=True, tag="thinking"):
    """What the model thought; for the chat template."""

    thinking: str
    signature: Hint = UNSET


class GivenHiddenThinking(GivenBlock, frozen=True, kw_only=True, tag="redacted_thinking"):
    """Thoughts that only their own server can read: left out."""

    data: Hint = UNSET


class GivenToolUse(GivenBlock, frozen=True, kw_only=True, tag="tool_use"):
    id: ToolCallId
    name: ParticipantName
    input: dict[str, Any]  # Any: JSON values
    caller: Hint = UNSET
    toolset_name: Hint = UNSET


class GivenToolResult(GivenBlock, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: ToolCallId
    content: str | Blocks | None = None
    is_error: bool | None = None
    toolset_name: Hint = UNSET


UserBlock = GivenText | GivenToolResult
AssistantBlock = GivenText | GivenThinking | GivenHiddenThinking | GivenToolUse


class AnthropicTurn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    """Base of the turns of a conversation."""


class AnthropicUserTurn(AnthropicTurn, frozen=True, kw_only=True, tag="user"):
    content: str | Annotated[list[UserBlock], Meta(max_length=MAX_PARTS)]


class AnthropicAssistantTurn(AnthropicTurn, frozen=True, kw_only=True, tag="assistant"):
    content: str | Annotated[list[AssistantBlock], Meta(max_length=MAX_PARTS)]


class AnthropicSystemTurn(AnthropicTurn, frozen=True, kw_only=True, tag="system"):
    content: str | Blocks


AnthropicTurnBody = AnthropicUserTurn | AnthropicAssistantTurn | AnthropicSystemTurn


class AnthropicTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the client runs. `input_schema` is the JSON schema of its arguments."""

    name: FunctionName
    input_schema: dict[str, Any]  # Any: JSON values
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    allowed_callers: Hint = UNSET
    cache_control: Hint = UNSET
    defer_loading: Hint = UNSET
    eager_input_streaming: Hint = UNSET
    input_examples: Hint = UNSET


class AnthropicToolChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tools may be used; `name` with the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicThinking(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the model thinks, and for how many tokens; `budget_tokens` with the type `enabled`."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class AnthropicOutputFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: JsonSchema


class AnthropicOutputConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicOutputFormat | None = None


class CountTokensBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens: what makes up a prompt."""

    model: Annotated[str, Meta(max_length=512, description="Of /v1/models; the served one if left out.")] | None = None
    messages: Annotated[list[AnthropicTurnBody], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Blocks | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: AnthropicOutputConfig | None = None
    cache_control: Hint = UNSET
    context_management: Hint = UNSET
    speed: Hint = UNSET
    mcp_servers: Nothing = UNSET


class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Count
    stream: bool | None = None
    disconnect_policy: DisconnectPolicy | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy.")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: only the most probable token.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32, description="0 or -1: all.")] | None = None
    deadline_ms: Deadline | None = None
    ttft_deadline_ms: FirstTokenDeadline | None = None
    metadata: Hint = UNSET
    service_tier: Hint = UNSET
    inference_geo: Hint = UNSET
    container: Nothing = UNSET
