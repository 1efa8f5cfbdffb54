"""What a client asks for, after validation: one vocabulary behind every wire dialect."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .message import Message
from .sampling import Sampling

Determinism = Literal["default", "strict"]
ParticipantName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$(?!\n)")]  # of a speaker or a function
ToolCallId = Annotated[str, Meta(min_length=1, max_length=128)]


class FunctionCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function of a tool call in the conversation so far; `arguments` is JSON text, as OpenAI sends it."""

    name: ParticipantName
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: ToolCallId
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One turn, with its content joined to plain text. The chat template decides which roles and orders it takes."""

    role: str
    content: str | None = None
    name: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class ChatPrompt(Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation for the model's chat template."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True


class TextPrompt(Struct, frozen=True, kw_only=True, tag="text"):
    """Raw text for /v1/completions."""

    text: str


class TokenPrompt(Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids, used as they are (checked against the vocabulary by the tokenizer actor)."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class Generate(Message, frozen=True, kw_only=True):
    """One request: `len(prompts) * n` choices; choice index = prompt index * n + i.

    `max_tokens` None means up to the context length. Times are seconds of the front's clock (trio.current_time()).
    Admission and scheduler enforce `deadline`; no API sets it yet.
    `determinism` "strict" gives bit-equal tokens and log probabilities, alone and in any batch, even on a GPU. On the
    CPU every request gets this.
    """

    id: str  # unique in this server, starts with the process; never chosen by the client
    name: str = ""  # X-Request-Id, by which the client may ask about the request; not unique
    traceparent: str = ""  # W3C trace context: the client's span that this request belongs to
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False  # keep the matched stop string in the text
    skip_special_tokens: bool = True
    echo: bool = False  # completions: the prompt's text comes first in the choice's text
    priority: int = 0  # lower runs first
    tenant: str = ""  # owner of its prefix cache and its share: a digest of the API key
    cache_salt: str = ""
    adapter: str = ""
    determinism: Determinism = "default"
    arrival_time: float = 0.0
    deadline: float | None = None
