"""The items of the Responses API's `input`: turns, thoughts, calls of functions and their results.

Clients send the items of an earlier `output` back as they got them, so what an answer holds is accepted here too.
The same Structs are what the server stores of a request's input, and lists again.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct

from .openai_messages import MAX_PARTS, Hint, ParticipantName, ToolCallId

MAX_ITEMS = 4096  # of one request, or of the conversation that it continues

ItemId = Annotated[str, Meta(min_length=1, max_length=256)]


class ItemPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the parts of an item's content."""


class InputTextPart(ItemPart, frozen=True, kw_only=True, tag="input_text"):
    text: str
    prompt_cache_breakpoint: Hint = UNSET


class OutputTextPart(ItemPart, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: Hint = UNSET
    logprobs: Hint = UNSET
    parsed: Hint = UNSET


class OutputRefusalPart(ItemPart, frozen=True, kw_only=True, tag="refusal"):
    refusal: str


class SummaryTextPart(ItemPart, frozen=True, kw_only=True, tag="summary_text"):
    text: str


class ReasoningTextPart(ItemPart, frozen=True, kw_only=True, tag="reasoning_text"):
    text: str


MessagePart = InputTextPart | OutputTextPart | OutputRefusalPart


class Item(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", omit_defaults=True):
    """What the items of all types have in common."""

    id: ItemId | None = None
    status: Hint = UNSET


class MessageItem(Item, frozen=True, kw_only=True, tag="message"):
    """A turn. Clients may leave out its `type`."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[MessagePart], Meta(max_length=MAX_PARTS)]
    phase: Hint = UNSET


class FunctionCallItem(Item, frozen=True, kw_only=True, tag="function_call"):
    """The model calls a function; `arguments` is JSON text."""

    call_id: ToolCallId
    name: ParticipantName
    arguments: str
    parsed_arguments: Hint = UNSET


class FunctionCallOutputItem(Item, frozen=True, kw_only=True, tag="function_call_output"):
    """The result of a call, by the call's `call_id`."""

    call_id: ToolCallId
    output: str | Annotated[list[InputTextPart], Meta(max_length=MAX_PARTS)]


class ReasoningItem(Item, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought, for its chat template. The content counts; without content, the summary."""

    summary: Annotated[list[SummaryTextPart], Meta(max_length=MAX_PARTS)] = []
    content: Annotated[list[ReasoningTextPart], Meta(max_length=MAX_PARTS)] | None = None
    encrypted_content: Annotated[None, Meta(description="Only its service can read OpenAI's encrypted thoughts.")] = (
        None
    )


class ItemReference(Item, frozen=True, kw_only=True, tag="item_reference"):
    """An item of a stored response, by its `id`."""


InputItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference
