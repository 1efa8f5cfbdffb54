"""The body of POST /v1/responses, as clients send it. The rules are those of protocol/openai_requests.py.

What OpenAI's service does beyond a model (its own tools, prompts kept there, moderation) is refused by name. A few
fields that OpenAI does not have are those of chat completions.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .openai_formats import JsonSchema
from .openai_messages import Hint
from .openai_requests import (
    IDENTIFIER,
    MAX_INT32,
    Count,
    Deadline,
    FirstTokenDeadline,
    TemplateVariables,
    Unsupported,
    UnsupportedFlag,
    neutral,
)
from .openai_tools import MAX_TOOLS, FunctionName, ReasoningEffort, ToolChoiceWord
from .response_items import MAX_ITEMS, InputItem, ItemId
from .sampling import MAX_TOP_LOGPROBS

ToolMode = Annotated[Literal["auto", "required"], Meta(description="required: at least one call.")]
Note = Annotated[str, Meta(max_length=512, description="Changes nothing; the response repeats it.")]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16, description="Up to 16 notes of the client's own; the response repeats them."),
]
Includable = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip


class ResponseStreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: UnsupportedFlag = UNSET


class ReasoningOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much the model thinks. Its thoughts come whole, as `reasoning_text`; nothing sums them up."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class TextFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of what an answer's text may be."""


class PlainFormat(TextFormat, frozen=True, kw_only=True, tag="text"):
    """Any text."""


class JsonObjectFormat(TextFormat, frozen=True, kw_only=True, tag="json_object"):
    """A JSON object."""


class JsonSchemaFormat(TextFormat, frozen=True, kw_only=True, tag="json_schema", omit_defaults=True):
    """JSON that a schema accepts."""

    name: Annotated[str, Meta(max_length=64, pattern=IDENTIFIER)]
    schema: JsonSchema
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: PlainFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the tools. OpenAI's own run at OpenAI."""


class ResponseFunction(ResponseTool, frozen=True, kw_only=True, tag="function"):
    """A function of the client's, that the model may call."""

    name: FunctionName
    parameters: Annotated[dict[str, Any], Meta(description="JSON schema of an object.")] | None = None  # Any: JSON
    strict: Annotated[bool, Meta(description="A call's arguments fit the schema.")] | None = None
    description: str | None = None


class ToolSelection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the ways to choose among the tools."""


class FunctionChoice(ToolSelection, frozen=True, kw_only=True, tag="function"):
    """This function must be called."""

    name: FunctionName


class AllowedTools(ToolSelection, frozen=True, kw_only=True, tag="allowed_tools"):
    """Only these of the tools may be called."""

    mode: ToolMode
    tools: Annotated[list[FunctionChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class CreateResponse(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses."""

    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    model: Annotated[str, Meta(max_length=512, description="Of /v1/models; the served one if left out.")] | None = None
    instructions: Annotated[str, Meta(description="A system turn before all others, in this answer only.")] | None = (
        None
    )
    previous_response_id: Annotated[ItemId, Meta(description="Continues its conversation.")] | None = None
    store: (
        Annotated[bool, Meta(description="Keep the answer, for previous_response_id and GET /v1/responses/{id}.")]
        | None
    ) = None
    background: Annotated[bool, Meta(description="Answer at once, and make the response meanwhile.")] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: Annotated[list[Includable], Meta(max_length=16)] | None = None
    metadata: Metadata | None = None

    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy.")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: only the most probable token.")] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[ResponseFunction], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceWord | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    truncation: (
        Annotated[Literal["auto", "disabled"], Meta(description="auto: the oldest turns are left out to fit.")] | None
    ) = None

    # Not OpenAI's: as in chat completions.
    seed: (
        Annotated[
            int,
            Meta(description="-1: a random one.", extra_json_schema={"minimum": -(2**63), "maximum": 2**64 - 1}),
        ]
        | None
    ) = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32, description="0 or -1: all.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32, description="Lower runs first.")] | None = None
    cache_salt: Annotated[str, Meta(max_length=128, pattern=IDENTIFIER)] | None = None
    deadline_ms: Deadline | None = None
    ttft_deadline_ms: FirstTokenDeadline | None = None
    chat_template_kwargs: TemplateVariables | None = None

    max_tool_calls: Hint = UNSET  # of OpenAI's own tools
    prompt_cache_options: Hint = UNSET
    prompt_cache_retention: Hint = UNSET
    service_tier: Hint = UNSET
    client_metadata: Hint = UNSET  # Codex sends it
    prompt_cache_key: Note | None = None
    safety_identifier: Note | None = None
    user: Note | None = None

    context_management: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET
    conversation: Annotated[Raw, neutral(None, instead="send previous_response_id")] | UnsetType = UNSET
    moderation: Unsupported = UNSET
    prompt: Unsupported = UNSET
