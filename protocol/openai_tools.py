"""Tools as OpenAI's clients describe them, and the ways to say which may be called."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from .openai_messages import Hint

MAX_TOOLS = 128  # as OpenAI's; their text goes into every prompt

FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$(?!\n)")]


class FunctionDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], Meta(description="JSON schema of an object.")] | None = None  # Any: JSON
    strict: Annotated[bool, Meta(description="A call's arguments fit the schema.")] | None = None


class ToolBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionDefinition
    cache_control: Hint = UNSET


class ChosenFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedToolChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This function must be called."""

    type: Literal["function"]
    function: ChosenFunction


ToolList = Annotated[list[ToolBody], Meta(max_length=MAX_TOOLS)]
ToolChoiceWord = Literal["none", "auto", "required"]
ToolChoice = Annotated[ToolChoiceWord, Meta(description="required: at least one call.")] | NamedToolChoice


class ThinkingBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Anthropic's way to switch thinking, which other services took over."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenRouter's way."""

    effort: ReasoningEffort | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    enabled: bool | None = None
    exclude: Annotated[bool, Meta(description="true: the thoughts are left out of the answer.")] | None = None
