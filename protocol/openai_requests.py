"""The bodies of OpenAI requests as clients send them: names, types and the bounds of single fields.

Unknown fields are refused. A null means "not given". A parameter of OpenAI's or of another server's that Triolet does
not implement is declared `neutral(…)`: the values listed there ask for nothing and are accepted. Any other value is
refused by name (web/openai/decode.py). Only `user` and `metadata` accept any value and change nothing: clients send
them for their own records. Checks that need the model or two fields together are in web/openai/request.py.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .openai_messages import MessageBody
from .requests import Determinism
from .sampling import MAX_TOP_LOGPROBS

MAX_INT32 = 2**31 - 1
MAX_MESSAGES = 4096  # of one conversation; far beyond any context, and cheap to convert
MAX_LOGIT_BIAS = 1024  # entries; each is applied at every token
MAX_STOP_TOKEN_IDS = 128
IDENTIFIER = r"^[A-Za-z0-9_-]+$(?!\n)"  # `$` alone would let a last newline through


def neutral(*values: object) -> Meta:
    """Mark a parameter that is not implemented: only these values are accepted, since they ask for nothing."""
    return Meta(description="Not supported; only values that ask for nothing.", extra_json_schema={"enum": [*values]})


Unsupported = Annotated[Raw, neutral(None)] | UnsetType
UnsupportedFlag = Annotated[Raw, neutral(None, False)] | UnsetType

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: UnsupportedFlag = UNSET


class GenerateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chat and completions have in common."""

    model: Annotated[str, Meta(max_length=512, description="Of /v1/models; the served one if left out.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128, description="Only the value of `n` is supported.")] | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy.")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32, description="0 or -1: all.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 2**64 - 1})] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32, description="Lower runs first.")] | None = None
    cache_salt: (
        Annotated[str, Meta(max_length=128, pattern=IDENTIFIER, description="Cached prompts are shared only under it.")]
        | None
    ) = None
    determinism: (
        Annotated[
            Determinism,
            Meta(description="strict: the same bits alone and in any batch, on a GPU too, where it costs speed."),
        ]
        | None
    ) = None

    # Accepted with any value; they change nothing. No other field is like that.
    user: Annotated[str, Meta(max_length=512)] | None = None
    metadata: dict[str, str] | None = None
    store: UnsupportedFlag = UNSET
    service_tier: Annotated[Raw, neutral(None, "auto", "default")] | UnsetType = UNSET

    allowed_token_ids: Unsupported = UNSET
    bad_words: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET
    early_stopping: UnsupportedFlag = UNSET
    guided_choice: Unsupported = UNSET
    guided_grammar: Unsupported = UNSET
    guided_json: Unsupported = UNSET
    guided_regex: Unsupported = UNSET
    length_penalty: Annotated[Raw, neutral(None, 1)] | UnsetType = UNSET
    logits_processors: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET
    prompt_logprobs: Unsupported = UNSET
    structured_outputs: Unsupported = UNSET
    truncate_prompt_tokens: Unsupported = UNSET
    use_beam_search: UnsupportedFlag = UNSET


class ChatBody(GenerateBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions, and the `request` of a WebSocket `create` frame."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    parallel_tool_calls: Annotated[Raw, neutral(None, True, False)] | UnsetType = UNSET
    tools: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET
    tool_choice: Annotated[Raw, neutral(None, "none", "auto")] | UnsetType = UNSET
    functions: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET
    function_call: Annotated[Raw, neutral(None, "none", "auto")] | UnsetType = UNSET
    response_format: Annotated[Raw, neutral(None, {"type": "text"})] | UnsetType = UNSET
    modalities: Annotated[Raw, neutral(None, ["text"])] | UnsetType = UNSET
    audio: Unsupported = UNSET
    prediction: Unsupported = UNSET
    reasoning_effort: Annotated[Raw, neutral(None, "none")] | UnsetType = UNSET
    verbosity: Annotated[Raw, neutral(None, "medium")] | UnsetType = UNSET
    web_search_options: Unsupported = UNSET
    prompt_cache_key: Unsupported = UNSET
    prompt_cache_retention: Unsupported = UNSET
    safety_identifier: Unsupported = UNSET
    echo: UnsupportedFlag = UNSET


class CompletionBody(GenerateBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[TokenId | str | list[TokenId]],
        Meta(
            description="One prompt or several: a text, a list of texts, a list of token ids, or a list of such lists.",
        ),
    ]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    max_completion_tokens: Unsupported = UNSET

    suffix: Annotated[Raw, neutral(None, "")] | UnsetType = UNSET


class TokenizeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    prompt: str | None = None
    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    tokens: list[TokenId]
