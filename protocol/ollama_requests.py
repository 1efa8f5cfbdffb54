"""The bodies of Ollama's API as clients send them: names, types and the bounds of single fields.

Unknown fields are refused. An option that says how Ollama would load the model changes nothing here (`Hint`).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .openai_messages import Hint, ParticipantName
from .openai_requests import MAX_INT32, MAX_MESSAGES, MIN_REPETITION_PENALTY, Penalty, neutral
from .openai_tools import ToolList
from .pooling_requests import MAX_TEXTS
from .sampling import MAX_TOP_LOGPROBS

ModelName = Annotated[str, Meta(max_length=512, description="Of /api/tags; the served one if left out.")] | None
Empty = Annotated[Raw, neutral(None, [])] | UnsetType
Think = bool | Literal["low", "medium", "high"] | None


class OllamaOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    num_predict: Annotated[int, Meta(ge=-2, le=MAX_INT32, description="-1 or -2: up to the context.")] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32, description="0 or -1: all.")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: only the most probable token.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=2)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    num_ctx: Hint = UNSET
    num_keep: Hint = UNSET
    num_batch: Hint = UNSET
    num_gpu: Hint = UNSET
    num_thread: Hint = UNSET
    main_gpu: Hint = UNSET
    numa: Hint = UNSET
    low_vram: Hint = UNSET
    f16_kv: Hint = UNSET
    use_mmap: Hint = UNSET
    use_mlock: Hint = UNSET
    vocab_only: Hint = UNSET
    logits_all: Hint = UNSET
    embedding_only: Hint = UNSET
    mirostat_eta: Hint = UNSET
    mirostat_tau: Hint = UNSET
    draft_num_predict: Hint = UNSET

    mirostat: Annotated[Raw, neutral(None, 0, instead="use temperature, top_p or min_p")] | UnsetType = UNSET
    penalize_newline: Annotated[Raw, neutral(None, True)] | UnsetType = UNSET
    repeat_last_n: (
        Annotated[Raw, neutral(None, -1, 64, instead="repeat_penalty looks at the whole text")] | UnsetType
    ) = UNSET
    tfs_z: Annotated[Raw, neutral(None, 1)] | UnsetType = UNSET
    typical_p: Annotated[Raw, neutral(None, 1, instead="use top_p or min_p")] | UnsetType = UNSET


class OllamaBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a chat and a generation have in common. They stream unless `stream` is false."""

    model: ModelName = None
    stream: bool | None = None
    options: OllamaOptions | None = None
    think: Think = None
    format: dict[str, Any] | Literal["", "json"] | None = None  # Any: a JSON schema
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    keep_alive: Hint = UNSET
    truncate: Hint = UNSET  # Ollama's default is true, and where nothing is sent no prompt is cut here either
    shift: Hint = UNSET


class OllamaGivenFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: ParticipantName
    arguments: dict[str, Any]  # Any: JSON values
    index: Hint = UNSET


class OllamaGivenCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    function: OllamaGivenFunction
    id: str | None = None
    type: Hint = UNSET


class OllamaTurn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`thinking` and `tool_calls` are the assistant's, `tool_name` and `tool_call_id` a tool's."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaGivenCall], Meta(max_length=128)] | None = None
    tool_name: ParticipantName | None = None
    tool_call_id: str | None = None
    images: Annotated[Raw, neutral(None, [])] | UnsetType = UNSET


class OllamaChatBody(OllamaBody, frozen=True, kw_only=True):
    """POST /api/chat. Without messages it only says that the model is loaded."""

    messages: Annotated[list[OllamaTurn], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: ToolList | None = None


class OllamaGenerateBody(OllamaBody, frozen=True, kw_only=True):
    """POST /api/generate. Without a prompt it only says that the model is loaded."""

    prompt: str | None = None
    system: str | None = None
    raw: Annotated[bool, Meta(description="The prompt is used as it is, without the chat template.")] | None = None
    suffix: Annotated[str, Meta(description="The text behind the answer, for models that fill in a gap.")] | None = None
    template: Annotated[Raw, neutral(None, "")] | UnsetType = UNSET
    context: Empty = UNSET
    images: Empty = UNSET
    width: Annotated[Raw, neutral(None)] | UnsetType = UNSET
    height: Annotated[Raw, neutral(None)] | UnsetType = UNSET
    steps: Annotated[Raw, neutral(None)] | UnsetType = UNSET


class OllamaShowBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/show. `name` is what older clients send."""

    model: ModelName = None
    name: ModelName = None
    verbose: Hint = UNSET


class OllamaEmbedBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/embed. Texts that are too long are cut at their end unless `truncate` is false."""

    model: ModelName = None
    input: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    options: Hint = UNSET
    keep_alive: Hint = UNSET
