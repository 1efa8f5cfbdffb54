"""What the Responses API sends: a response with its items, and the events of a stream.

`triolet_finish_reason`, which OpenAI does not have, is the server's own reason, such as `deadline`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .errors import ErrorDetail
from .events import FinishReason, Usage
from .openai_responses import TokenLogprobBody

RESPONSE_PREFIX = "resp_"  # of an id; the request's own follows

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[str] = []  # always empty: these are of OpenAI's own tools
    logprobs: list[TokenLogprobBody] = []


class ReasoningText(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputReasoning(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[str] = []  # always empty
    content: list[ReasoningText]


class OutputFunctionCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputPart = OutputText | ReasoningText
OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0  # writing costs nothing here


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


def response_usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


class ResponseError(Struct, frozen=True, kw_only=True):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ReasoningEcho(Struct, frozen=True, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class TextEcho(Struct, frozen=True, kw_only=True):
    format: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    verbosity: str = "medium"


class ResponseObject(Struct, frozen=True, kw_only=True):
    """A response: the parameters of its request, and what has become of it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: str | dict[str, Any]  # Any: JSON values
    tools: list[dict[str, Any]]  # likewise
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]
    triolet_finish_reason: FinishReason | UnsetType = UNSET


class ResponseDeleted(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokenCount(Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponseItemList(Struct, frozen=True, kw_only=True):
    """A page of the items of a response's input."""

    object: Literal["list"] = "list"
    data: list[Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of a stream's events. The last is `response.completed`, `.incomplete` or `.failed`, and only one is."""

    sequence_number: int


class StateEvent(ResponseEvent, frozen=True, kw_only=True):
    response: ResponseObject


class ResponseCreated(StateEvent, frozen=True, kw_only=True, tag="response.created"):
    pass


class ResponseInProgress(StateEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    pass


class ResponseCompleted(StateEvent, frozen=True, kw_only=True, tag="response.completed"):
    pass


class ResponseIncomplete(StateEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    pass


class ResponseFailed(StateEvent, frozen=True, kw_only=True, tag="response.failed"):
    pass


class ItemEvent(ResponseEvent, frozen=True, kw_only=True):
    output_index: int


class OutputItemAdded(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    item: OutputItem


class OutputItemDone(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    item: OutputItem


class PartEvent(ItemEvent, frozen=True, kw_only=True):
    item_id: str
    content_index: int = 0


class ContentPartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: OutputPart


class ContentPartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: OutputPart


class OutputTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TokenLogprobBody] = []


class OutputTextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[TokenLogprobBody] = []


class ReasoningTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    item_id: str
    delta: str


class ArgumentsDone(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    item_id: str
    name: str
    arguments: str


class ResponseErrorEvent(ResponseEvent, frozen=True, kw_only=True, tag="error"):
    """On a WebSocket: a request that was refused, and so has no response."""

    status: int
    code: str
    message: str
    param: str | None
    error: ErrorDetail


StreamedEvent = (
    ResponseCreated | ResponseInProgress | OutputItemAdded | ContentPartAdded | OutputTextDelta | OutputTextDone
    | ReasoningTextDelta | ReasoningTextDone | ArgumentsDelta | ArgumentsDone | ContentPartDone | OutputItemDone
    | ResponseCompleted | ResponseIncomplete | ResponseFailed | ResponseErrorEvent
)  # fmt: skip
