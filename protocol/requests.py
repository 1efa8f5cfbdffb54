"""What a client asks for, after validation: one vocabulary behind every wire dialect."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from .adapters import Adapter
from .grammars import GrammarSource
from .message import Message
from .sampling import Sampling

Determinism = Literal["default", "strict"]


class FunctionCall(Struct, frozen=True, kw_only=True):
    """The function of a tool call in the conversation so far; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One turn, with its content joined to plain text. The chat template decides which roles and orders it takes."""

    role: str
    content: str | None = None
    reasoning_content: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class FunctionTool(Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}  # Any: JSON values
    strict: bool = False  # a call's arguments must fit the schema


class ToolUse(Struct, frozen=True, kw_only=True):
    """How the prompt's tools may be called. Without it, a call that the model writes is text like any other."""

    choice: Literal["auto", "required"] = "auto"
    name: str = ""  # the only function that may be called; it must be, since `choice` is then `required`
    parallel: bool = True  # otherwise an answer has one call at most
    schema_field: str = "function.parameters"  # of a tool in the client's body, for errors


class Thinking(Struct, frozen=True, kw_only=True):
    """How the model marks its thoughts, in token ids; known when the prompt is tokenised."""

    begin: tuple[int, ...]  # the first tokens of an answer that begins with thoughts
    end: tuple[int, ...]
    open: bool = False  # the prompt ends inside the thoughts


class ChatPrompt(Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation for the model's chat template.

    With `continue_final_message` the prompt ends with the last message's text, which the answer continues.
    `template_variables` are JSON values that the template reads by name.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[FunctionTool, ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False  # a template writes all special tokens itself
    documents: tuple[dict[str, Any], ...] = ()  # Any: JSON values
    template_variables: dict[str, Any] = {}  # likewise


class TextPrompt(Struct, frozen=True, kw_only=True, tag="text"):
    """Raw text for /v1/completions."""

    text: str
    suffix: str = ""  # what comes behind the answer, for models that fill in a gap
    second: str | None = None  # the other text of a pair, which a classifier reads together with the first
    add_special_tokens: bool = True  # the tokenizer's usual prefix, such as a beginning-of-text id


class TokenPrompt(Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids, used as they are (checked against the vocabulary by the tokenizer actor)."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class BeamRule(Struct, frozen=True, kw_only=True):
    """Beam search: the choices of a prompt are its best answers, best first. Temperature is 0, and nothing is masked.

    An answer's score is the sum of its log probabilities over its length to the power of `length_penalty`.
    """

    answers: int  # how many of the choices have text; the others only widen the search
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False  # true: with the first answers; "never": when none can be better


class Generate(Message, frozen=True, kw_only=True):
    """One request: `len(prompts) * n` choices; choice index = prompt index * n + i.

    `max_tokens` None means up to the context length. Times are seconds of the front's clock (trio.current_time()).
    Admission and scheduler enforce the deadlines.
    `determinism` "strict" gives bit-equal tokens and log probabilities, alone and in any batch, even on a GPU. On the
    CPU every request gets this.
    """

    id: str  # unique in this server, starts with the process; never chosen by the client
    name: str = ""  # X-Request-Id, by which the client may ask about the request; not unique
    traceparent: str = ""  # W3C trace context: the client's span that this request belongs to
    model: str
    prompts: tuple[Prompt, ...]
    pooled: bool = False  # each prompt's vector is wanted: an embedding or a classifier's scores, and no answer
    sampling: Sampling
    n: int = 1
    beams: BeamRule | None = None  # search with n beams instead of drawing n answers
    max_tokens: int | None = None
    ends_at_context: bool = False  # more `max_tokens` than fit are no error: the answer ends where the context does
    stop: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()  # texts that may not be generated; the tokenizer makes them `sampling.bad_words`
    stop_regex: tuple[str, ...] = ()  # regular expressions that end the text as stop strings do
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False  # keep the matched stop string in the text
    skip_special_tokens: bool = True
    tokens_as_ids: bool = False  # log probabilities name their tokens `token_id:5`
    truncate_prompt_tokens: int | None = None  # prompts keep so many tokens; -1: as many as the answer leaves room for
    truncation_side: Literal["left", "right"] = "left"  # where a longer prompt is cut off
    returns_token_ids: bool = False  # the ids of prompt and answer come beside the text
    prompt_logprobs: int | None = None  # log probabilities of the prompt come beside the answer, with the top n
    grammar_source: GrammarSource | None = None  # compiled on the way to admission, which makes it `grammar`
    grammar: str = ""  # what an answer may be: an llguidance grammar, accepted by its compiler; "" is anything
    grammar_memory: int = 0  # bytes that the worker needs for it
    reasoning_budget: int | None = None  # tokens that the model may think before its thinking is ended for it
    reads_output: bool = False  # the answer is split into thoughts, tool calls and text, as the model's format says
    tool_use: ToolUse | None = None
    thinking: Thinking | None = None  # set by the tokenizer; None: this model does not mark its thoughts
    include_reasoning: bool = True  # otherwise the thoughts' text is left out of the answer, but their tokens count
    echo: bool = False  # completions: the prompt's text comes first in the choice's text
    priority: int = 0  # lower runs first, within a tenant
    tenant: str = ""  # owner of its prefix cache and its share: a digest of the API key
    cache_salt: str = ""
    adapter: Adapter | None = None
    determinism: Determinism = "default"
    background: bool = False  # a batch's line: it runs in steps that no other request can use
    arrival_time: float = 0.0
    deadline: float | None = None  # of the whole answer, which is cut there
    first_token_deadline: float | None = None

    @property
    def first_due(self) -> float | None:
        """When it ends if it has no token by then."""
        return min((due for due in (self.deadline, self.first_token_deadline) if due is not None), default=None)

    @property
    def served_as(self) -> str:
        """What answers call the model: the adapter's name, if there is one."""
        return self.model if self.adapter is None else self.adapter.name
