"""Decodes the body of POST /v1/responses. What OpenAI's service does beyond a model is refused by its name."""

import re
from typing import Any, cast

import msgspec

from ...protocol.errors import ApiError
from ...protocol.response_requests import CreateResponse
from ..openai.decode import decode, refuse_unsupported

_BODY = msgspec.json.Decoder(CreateResponse)
_ITEM_TYPE = re.compile(r"input\[\d+\]\.type")
_PART_TYPE = re.compile(r"input\[\d+\]\.(content|output|summary)\[\d+\]\.type")
_TOOL_TYPE = re.compile(r"tools\[\d+\]\.type")
_IN_AN_ITEM = re.compile(r"input\[\d+\]")


def read_body(data: bytes) -> CreateResponse:
    """Raises ApiError (400)."""
    try:
        body = decode(data, _BODY)
    except ApiError as error:
        if error.param is None or not _IN_AN_ITEM.match(error.param):
            raise _explained(error) from None
        try:
            body = decode(_restated(data), _BODY)
        except ApiError as again:
            raise _explained(again) from None
    refuse_unsupported(body)
    return body


def _restated(data: bytes) -> bytes:
    """The same body with the type of every item, and without the nulls in them: clients write items in both ways."""
    body = msgspec.json.decode(data, type=dict[str, Any])  # Any: JSON values
    body["input"] = [_typed(item) for item in body["input"]]
    return msgspec.json.encode(body)


def _typed(item: Any) -> Any:  # Any: a JSON value
    if not isinstance(item, dict):
        return item
    fields = {name: value for name, value in cast("dict[str, Any]", item).items() if value is not None}
    fields.setdefault("type", "message" if "role" in fields else "item_reference")
    return fields


def _explained(error: ApiError) -> ApiError:
    """What is right at OpenAI but cannot be done here."""
    param = error.param or ""
    if error.message.startswith("Missing"):
        return error
    if _ITEM_TYPE.fullmatch(param):
        known = "message, function_call, function_call_output, reasoning and item_reference"
        return ApiError("unsupported_parameter", f"{param}: this server knows the items {known}.", param=param)
    if _PART_TYPE.fullmatch(param):
        return ApiError("unsupported_parameter", f"{param}: only text content is supported.", param=param)
    if _TOOL_TYPE.fullmatch(param) or param == "tool_choice.type":
        problem = "only functions can be tools here; OpenAI's own, such as web_search, run at OpenAI"
        return ApiError("unsupported_parameter", f"{param}: {problem}.", param=param)
    return error
