"""A body of POST /v1/responses, and the conversation that it continues, as the engine's request.

It is translated to the body of a chat first: there is one way from a conversation to a `Generate`.
"""

import re
from collections.abc import Sequence
from typing import Final

from ...protocol.errors import ApiError
from ...protocol.openai_formats import (
    NamedSchema,
    ResponseFormat,
    ResponseFormatJsonObject,
    ResponseFormatJsonSchema,
)
from ...protocol.openai_requests import ChatBody
from ...protocol.requests import Generate
from ...protocol.response_items import MAX_ITEMS, InputItem, MessageItem
from ...protocol.response_requests import CreateResponse, JsonObjectFormat, JsonSchemaFormat
from ..generation.asked import Origin, ServedModel
from ..openai.request import generate_from_chat
from .conversation import turns_of
from .tools import tool_choice_of, tools_of

# By the parameter of chat completions: how errors spell it, and what that is here.
_NAMES: Final = {
    "messages": (re.compile(r"\bmessages\b"), "input"),
    "max_tokens": (re.compile(r"\bmax_tokens\b"), "max_output_tokens"),
    "max_completion_tokens": (re.compile(r"\bmax_completion_tokens\b"), "max_output_tokens"),
    "response_format": (re.compile(r"\bresponse_format(\.json_schema)?\b"), "text.format"),
    "reasoning_effort": (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    "tools": (re.compile(r"\.function\b"), ""),  # a function's fields are the tool's own
    "tool_choice": (re.compile(r"\.function\b"), ""),
}
_ROOT: Final = re.compile(r"[a-z_]*")


def items_of(body: CreateResponse) -> list[InputItem]:
    """The body's own items. Raises ApiError (400) if it has none, and continues nothing."""
    if body.input is None or body.input == []:
        if body.previous_response_id is None:
            raise ApiError("invalid_value", "Missing required parameter: input.", param="input")
        return []
    return [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input


def generate_from_response(
    body: CreateResponse, earlier: Sequence[InputItem], items: Sequence[InputItem], served: ServedModel, origin: Origin
) -> Generate:
    """`earlier` is the conversation that the body continues. Raises ApiError (400, 404)."""
    if len(earlier) + len(items) > MAX_ITEMS:
        message = f"The conversation has more than {MAX_ITEMS} items; begin a new one."
        raise ApiError("invalid_value", message, param="input")
    with_scores = wants_logprobs(body)
    if body.top_logprobs and not with_scores:
        message = 'top_logprobs needs include: ["message.output_text.logprobs"].'
        raise ApiError("invalid_value", message, param="top_logprobs")
    chat = ChatBody(
        model=body.model,
        messages=turns_of([*earlier, *items], body.instructions),
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        logprobs=with_scores,
        top_logprobs=body.top_logprobs,
        priority=body.priority,
        cache_salt=body.cache_salt,
        deadline_ms=body.deadline_ms,
        ttft_deadline_ms=body.ttft_deadline_ms,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        response_format=_format(body),
        tools=tools_of(body),
        tool_choice=tool_choice_of(body),
        parallel_tool_calls=body.parallel_tool_calls,
    )
    try:
        return generate_from_chat(chat, served, origin)
    except ApiError as error:
        raise restated(error) from None


def _format(body: CreateResponse) -> ResponseFormat | None:
    match body.text.format if body.text else None:
        case JsonSchemaFormat(name=name, schema=schema, strict=strict):
            return ResponseFormatJsonSchema(json_schema=NamedSchema(name=name, schema=schema, strict=strict))
        case JsonObjectFormat():
            return ResponseFormatJsonObject()
        case _:
            return None


def wants_logprobs(body: CreateResponse) -> bool:
    return "message.output_text.logprobs" in (body.include or ())


def restated(error: ApiError) -> ApiError:
    """An error that names a parameter of chat completions, in the words of this API."""
    root = _ROOT.match(error.param or "")
    if root is None or root[0] not in _NAMES:
        return error
    spelt, name = _NAMES[root[0]]
    param, message = (spelt.sub(name, text) for text in (error.param or "", error.message))
    return ApiError(error.code, message, param=param, retry_after=error.retry_after)
