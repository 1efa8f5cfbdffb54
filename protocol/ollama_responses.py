"""The bodies of Ollama's API: answers (each line of a stream is one), models, errors. Durations are nanoseconds."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from .events import Finished, FinishReason
from .openai_responses import TokenLogprobBody

OllamaDoneReason = Literal["stop", "length", "load"]
OllamaCapability = Literal["completion", "embedding", "tools", "thinking"]

DONE_REASON: dict[FinishReason, OllamaDoneReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "cancelled": "stop",
    "deadline": "length",
    "stalled": "length",
    "error": "stop",
}


class OllamaCalledFunction(Struct, frozen=True, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]  # Any: JSON values


class OllamaCall(Struct, frozen=True, kw_only=True):
    id: str
    function: OllamaCalledFunction


class OllamaMessage(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaAnswer(Struct, frozen=True, kw_only=True):
    """The last piece is `done`, and only it has the fields behind that; `created_at` is when the answer began."""

    model: str
    created_at: str
    done: bool = False
    done_reason: OllamaDoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprobBody] | UnsetType = UNSET


class OllamaChatAnswer(OllamaAnswer, frozen=True, kw_only=True):
    message: OllamaMessage


class OllamaGenerateAnswer(OllamaAnswer, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbeddings(Struct, frozen=True, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


def end_fields(finished: Finished, reason: FinishReason) -> dict[str, Any]:  # Any: of the fields' types
    """What the last piece says. From the first token on, the model answers; before, it waited and read the prompt."""
    timing, usage = finished.timing, finished.usage
    total = timing.total or 0.0
    first = total if timing.ttft is None else timing.ttft
    return {
        "done": True,
        "done_reason": DONE_REASON[reason],
        "total_duration": nanoseconds(total),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": nanoseconds(first - (timing.queued or 0.0)),
        "eval_count": usage.completion_tokens,
        "eval_duration": nanoseconds(total - first),
    }


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


class OllamaModelDetails(Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str = "safetensors"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Struct, frozen=True, kw_only=True):
    """`digest` names the loaded model, and is not that of a file."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaModelDetails


class OllamaModels(Struct, frozen=True, kw_only=True):
    """GET /api/tags."""

    models: list[OllamaModel]


class OllamaRunningModel(OllamaModel, frozen=True, kw_only=True):
    """It is never unloaded, so `expires_at` is far away."""

    expires_at: str
    size_vram: int
    context_length: int


class OllamaRunningModels(Struct, frozen=True, kw_only=True):
    """GET /api/ps."""

    models: list[OllamaRunningModel]


class OllamaModelPage(Struct, frozen=True, kw_only=True):
    """POST /api/show."""

    modelfile: str = ""
    parameters: str
    template: str
    details: OllamaModelDetails
    model_info: dict[str, Any]  # Any: numbers and texts
    capabilities: list[OllamaCapability]
    modified_at: str


class OllamaVersion(Struct, frozen=True, kw_only=True):
    """GET /api/version: `version` is that of Ollama whose API this is."""

    version: str
    triolet: str


class OllamaError(Struct, frozen=True, kw_only=True):
    """The body of every refusal, and a stream's last line if it fails."""

    error: str
