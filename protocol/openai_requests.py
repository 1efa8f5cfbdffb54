"""The bodies of OpenAI requests as clients send them: names, types and the bounds of single fields.

Unknown fields are refused. A null means "not given". A parameter of OpenAI's or of another server's that Triolet does
not implement is declared `neutral(…)`: the values listed there ask for nothing and are accepted. Any other value is
refused by name (web/openai/decode.py). A `Hint` accepts any value and changes nothing: it is a client's note for its
own records, or advice to a service that this server is not. docs/api.md lists them all. Checks that need the model or
two fields together are in web/openai/request.py.
"""

from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .openai_formats import Choice, LarkOrGbnf, Regex, ResponseFormat, StructuredOutputs, TextOrSchema
from .openai_messages import Hint, MessageBody
from .openai_tools import ReasoningBody, ReasoningEffort, ThinkingBody, ToolChoice, ToolList
from .requests import Determinism
from .sampling import MAX_TOP_LOGPROBS

MAX_INT32 = 2**31 - 1
MAX_MESSAGES = 4096  # of one conversation; far beyond any context, and cheap to convert
MAX_LOGIT_BIAS = 1024  # entries; each is applied at every token
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 256  # each is looked for at every token, with and without a space before it
MAX_BAD_WORD = 128  # characters
MIN_REPETITION_PENALTY = 0.01  # logits are divided by it; far smaller ones would overflow
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_VARIABLES = 64
IDENTIFIER = r"^[A-Za-z0-9_-]+$(?!\n)"  # `$` alone would let a last newline through


def neutral(*values: object, instead: str = "") -> Meta:
    """Mark a parameter that is not implemented: only these values are accepted, since they ask for nothing.

    `instead` completes the refusal with what to send for the same purpose.
    """
    description = "Not supported; only values that ask for nothing."
    schemas = [_schema_of(value) for value in values]
    schema = {"anyOf": schemas} if len(schemas) > 1 else schemas[0]
    return Meta(description=description, extra_json_schema=schema, extra={"neutral": values, "instead": instead})


def _schema_of(value: Any) -> dict[str, Any]:  # Any: JSON values
    """The schema of this value alone. It has a type throughout, which generators of clients need."""
    match value:
        case dict():
            fields = {name: _schema_of(inner) for name, inner in cast("dict[str, Any]", value).items()}
            return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
        case [*items]:
            return {
                "type": "array",
                "items": {"anyOf": [_schema_of(item) for item in items]} if items else {},
                "minItems": len(items),
                "maxItems": len(items),
            }
        case None:
            return {"type": "null"}
        case str():
            return {"type": "string", "enum": [value]}
        case bool():
            return {"type": "boolean", "const": value}
        case _:
            return {"type": "number", "const": value}


Unsupported = Annotated[Raw, neutral(None)] | UnsetType
UnsupportedFlag = Annotated[Raw, neutral(None, False)] | UnsetType

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Deadline = Annotated[int, Meta(ge=1, le=MAX_INT32, description="So long the whole answer may take; it is cut there.")]
FirstTokenDeadline = Annotated[int, Meta(ge=1, le=MAX_INT32, description="So long the first token may take.")]
TemplateVariables = Annotated[  # Any: JSON values
    dict[str, Any],
    Meta(max_length=MAX_TEMPLATE_VARIABLES, description="Variables of the model's chat template, such as a switch."),
]


DisconnectPolicy = Annotated[
    str,
    Meta(
        max_length=32,
        description="If its client leaves, a stream is cancelled (`cancel`) or goes on (`grace:SECONDS`, `detach`).",
    ),
]


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: UnsupportedFlag = UNSET


class GenerateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chat and completions have in common."""

    model: Annotated[str, Meta(max_length=512, description="Of /v1/models; the served one if left out.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    disconnect_policy: DisconnectPolicy | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: (
        Annotated[int, Meta(ge=1, le=128, description="So many are generated; the n most probable are the answer.")]
        | None
    ) = None
    use_beam_search: Annotated[bool, Meta(description="The choices are the best answers found, not drawn.")] | None = (
        None
    )
    length_penalty: (
        Annotated[float, Meta(ge=-10, le=10, description="Of beam search: above 1 prefers long answers.")] | None
    ) = None
    early_stopping: (
        Annotated[bool | Literal["never"], Meta(description="Of beam search: when enough answers are found.")] | None
    ) = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy.")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: only the most probable token.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32, description="0 or -1: all.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    truncate_prompt_tokens: (
        Annotated[int, Meta(ge=-1, le=MAX_INT32, description="A longer prompt is cut; -1: to what fits.")] | None
    ) = None
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Meta(min_length=1, description="Only these tokens are generated.")] | None
    ) = None
    bad_words: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD)]],
            Meta(max_length=MAX_BAD_WORDS, description="These texts are not generated."),
        ]
        | None
    ) = None
    seed: (
        Annotated[
            int,
            Meta(description="-1: a random one.", extra_json_schema={"minimum": -(2**63), "maximum": 2**64 - 1}),
        ]
        | None
    ) = None
    stop: str | list[str] | None = None
    stop_regex: Annotated[str | list[str], Meta(description="Where the text ends, too, as expressions.")] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_tokens_as_token_ids: (
        Annotated[bool, Meta(description="The tokens in logprobs are written as `token_id:5`.")] | None
    ) = None
    prompt_logprobs: (
        Annotated[
            int,
            Meta(ge=0, le=MAX_TOP_LOGPROBS, description="Of the prompt's tokens, each with so many alternatives."),
        ]
        | None
    ) = None
    return_token_ids: Annotated[bool, Meta(description="The ids of prompt and answer come beside them.")] | None = None
    priority: (
        Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32, description="Lower runs first, within one API key.")] | None
    ) = None
    cache_salt: (
        Annotated[str, Meta(max_length=128, pattern=IDENTIFIER, description="Cached prompts are shared only under it.")]
        | None
    ) = None
    deadline_ms: Deadline | None = None
    ttft_deadline_ms: FirstTokenDeadline | None = None
    determinism: (
        Annotated[
            Determinism,
            Meta(description="strict: the same bits alone and in any batch, on a GPU too, where it costs speed."),
        ]
        | None
    ) = None

    # What the answer must be: at most one of these (web/openai/formats.py).
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: TextOrSchema | UnsetType = UNSET  # vLLM's older names
    guided_regex: Regex | None = None
    guided_choice: Choice | None = None
    guided_grammar: LarkOrGbnf | None = None
    grammar: LarkOrGbnf | None = None  # llama.cpp's name

    cache_control: Hint = UNSET
    cache_prompt: Hint = UNSET
    id_slot: Hint = UNSET
    keep_alive: Hint = UNSET
    metadata: Hint = UNSET
    prediction: Hint = UNSET
    prompt_cache_key: Hint = UNSET
    prompt_cache_options: Hint = UNSET
    prompt_cache_retention: Hint = UNSET
    request_id: Hint = UNSET
    rid: Hint = UNSET
    safety_identifier: Hint = UNSET
    service_tier: Hint = UNSET
    spaces_between_special_tokens: Hint = UNSET
    store: Hint = UNSET
    ttl: Hint = UNSET
    user: Hint = UNSET
    verbosity: Hint = UNSET

    logits_processors: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET
    mirostat: Annotated[Raw, neutral(None, 0, instead="use temperature, top_p or min_p")] | UnsetType = UNSET
    typical_p: Annotated[Raw, neutral(None, 1, instead="use top_p or min_p")] | UnsetType = UNSET


class ChatBody(GenerateBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions, and the `request` of a WebSocket `create` frame."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    # For the chat template.
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[bool, Meta(description="The answer continues the last message.")] | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    documents: Annotated[list[dict[str, Any]], Meta(max_length=MAX_DOCUMENTS)] | None = None  # Any: JSON values
    reasoning_effort: ReasoningEffort | None = None

    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: one call at most.")] | None = None

    # Of models that think.
    enable_thinking: bool | None = None
    thinking: ThinkingBody | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    reasoning: ReasoningBody | None = None
    include_reasoning: Annotated[bool, Meta(description="false: the thoughts are left out.")] | None = None

    functions: Annotated[Raw, neutral(None, [], instead="send tools")] | UnsetType = UNSET
    function_call: Annotated[Raw, neutral(None, "none", "auto", instead="send tool_choice")] | UnsetType = UNSET
    modalities: Annotated[Raw, neutral(None, ["text"])] | UnsetType = UNSET
    audio: Unsupported = UNSET
    moderation: Unsupported = UNSET
    web_search_options: Unsupported = UNSET
    echo: UnsupportedFlag = UNSET


class CompletionBody(GenerateBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[TokenId | str | list[TokenId]],
        Meta(
            description="One prompt or several: a text, a list of texts, a list of token ids, or a list of such lists.",
        ),
    ]
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32, description="0 only with echo.")] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | bool | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    max_completion_tokens: Unsupported = UNSET

    suffix: Annotated[str, Meta(description="The text behind the answer, for models that fill in a gap.")] | None = None


class TokenizeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    prompt: str | None = None
    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: ToolList | None = None


class DetokenizeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    tokens: list[TokenId]
