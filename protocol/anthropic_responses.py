"""The bodies of Anthropic's Messages API: a whole message, the events of a stream, an error.

Fields that Anthropic always sends are always here, null included.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .events import FinishReason, Usage

AnthropicStopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]

# `stop_sequence` besides: a stop with the string that matched.
STOP_REASON: dict[FinishReason, AnthropicStopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "cancelled": "end_turn",
    "deadline": "max_tokens",
    "stalled": "max_tokens",
    "error": "end_turn",
}


class MessageOutputDetails(Struct, frozen=True, kw_only=True):
    thinking_tokens: int


class MessageUsage(Struct, frozen=True, kw_only=True):
    """The prompt's tokens are the sum of the three counts of input."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: MessageOutputDetails | UnsetType = UNSET


def message_usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=MessageOutputDetails(thinking_tokens=usage.reasoning_tokens),
    )


class TextBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """`signature` is there for clients that read it. It may be sent back, and is not looked at."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]  # Any: JSON values


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class AnthropicMessage(Struct, frozen=True, kw_only=True):
    """The whole answer; at a stream's start without its content."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: AnthropicStopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"):
    message: AnthropicMessage


class ContentBlockStart(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class BlockText(Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class BlockThinking(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class BlockInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: BlockText | BlockThinking | BlockInput


class ContentBlockStop(Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(Struct, frozen=True, kw_only=True):
    stop_reason: AnthropicStopReason
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    """How the message ended; the counts are those of the whole message."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    """The last event."""


class MessagePing(Struct, frozen=True, kw_only=True, tag_field="type", tag="ping"):
    """Sent while nothing else is."""


class AnthropicErrorDetails(Struct, frozen=True, kw_only=True):
    """`error_code` is the server's own code, `param` the field that is wrong."""

    error_code: str
    param: str | None


class AnthropicErrorDetail(Struct, frozen=True, kw_only=True):
    type: str
    message: str
    details: AnthropicErrorDetails


class AnthropicError(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The body of every refusal, and a stream's last event if it fails."""

    error: AnthropicErrorDetail
    request_id: str


MessageEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | MessagePing
    | AnthropicError
)


class AnthropicModel(Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int


class AnthropicModels(Struct, frozen=True, kw_only=True):
    """One page, which is all."""

    data: list[AnthropicModel]
    has_more: bool = False
    first_id: str | None
    last_id: str | None


class TokenCount(Struct, frozen=True, kw_only=True):
    input_tokens: Annotated[int, Meta(ge=0)]
