"""The bodies of OpenAI responses: whole answers, and the chunks of a stream.

`finish_reason` and `logprobs` are always present, null included: clients index them. OpenAI does not have two of the
fields: `stop_reason` is the stop string or token id that matched, `triolet_finish_reason` the server's own reason, such
as `deadline`. Chat and completions differ in a choice's text: a chat sends it as a `message` or a `delta`.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from .events import FinishReason, Usage

OpenAIFinishReason = Literal["stop", "length", "tool_calls"]

OPENAI_REASON: dict[FinishReason, OpenAIFinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "cancelled": "stop",
    "deadline": "length",
    "stalled": "length",
    "error": "stop",
}


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class UsageBody(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens),
    )


class TopLogprobBody(Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None  # null: a stop token, which is not part of the text


class TokenLogprobBody(TopLogprobBody, frozen=True, kw_only=True):
    top_logprobs: list[TopLogprobBody]


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    content: list[TokenLogprobBody]


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Parallel lists, one entry per token. The first token of an echoed prompt has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledFunction(Struct, frozen=True, kw_only=True):
    """A call's function. `arguments` is JSON text: an object, if the answer was not cut inside it."""

    name: str
    arguments: str


class MessageToolCall(Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class PromptLogprob(Struct, frozen=True, kw_only=True):
    """One token at a place of the prompt; rank 1 is the most probable there."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]  # one entry per token of the prompt, by token id


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """`content` is null beside calls without text. The thoughts have two names, since clients read one or the other."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """A piece of a call. The first has `id`, `type` and the name; the `arguments` of all pieces are one JSON text."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class AnswerChoice(Struct, frozen=True, kw_only=True):
    """One choice of a whole answer, in either dialect."""

    index: int
    text: AnswerMessage | str
    logprobs: ChatLogprobs | CompletionLogprobs | None
    finish_reason: OpenAIFinishReason
    stop_reason: str | int | None
    triolet_finish_reason: FinishReason
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatChoice(AnswerChoice, frozen=True, kw_only=True, rename={"text": "message"}):
    text: AnswerMessage
    logprobs: ChatLogprobs | None


class CompletionChoice(AnswerChoice, frozen=True, kw_only=True):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A piece of one choice, in either dialect. Only the last has `stop_reason` and `triolet_finish_reason`."""

    index: int
    text: Delta | str
    logprobs: ChatLogprobs | CompletionLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    triolet_finish_reason: FinishReason | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatChunkChoice(ChunkChoice, frozen=True, kw_only=True, rename={"text": "delta"}):
    text: Delta
    logprobs: ChatLogprobs | None = None


class CompletionChunkChoice(ChunkChoice, frozen=True, kw_only=True):
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class AnswerBody(Struct, frozen=True, kw_only=True):
    """A whole answer or a chunk of one, in either dialect. Subclasses narrow the fields to what their clients get."""

    id: str
    object: str = ""
    created: int
    model: str
    choices: tuple[AnswerChoice | ChunkChoice, ...]
    usage: UsageBody | UnsetType | None


class ChatCompletion(AnswerBody, frozen=True, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: tuple[ChatChoice, ...]
    usage: UsageBody
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(AnswerBody, frozen=True, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: tuple[CompletionChoice, ...]
    usage: UsageBody


class ChatChunk(AnswerBody, frozen=True, kw_only=True):
    """One `data:` event. With `include_usage`, `usage` is null in every chunk but the last, which has no choices."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: tuple[ChatChunkChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class CompletionChunk(AnswerBody, frozen=True, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: tuple[CompletionChunkChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET


class ModelCard(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "triolet"
    root: str  # of a LoRA adapter: the model under it
    parent: str | None = None  # the same; null for the model
    max_model_len: int


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokenization(Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]


class TokenizerInfo(Struct, frozen=True, kw_only=True):
    """What a client needs to prepare prompts as the server would: lm-eval's remote tokenizer reads it."""

    tokenizer_class: Literal["PreTrainedTokenizerFast"] = "PreTrainedTokenizerFast"  # reads every tokenizer.json
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class Detokenization(Struct, frozen=True, kw_only=True):
    prompt: str
