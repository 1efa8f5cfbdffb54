"""Turns and tools in the form that chat templates read: dicts, as in Hugging Face's. Pure."""

import json
from typing import Any, Final, NamedTuple

import msgspec

from ...protocol.requests import ChatMessage, FunctionTool, ToolCall


class TurnShape(NamedTuple):
    """What a template expects of a turn with calls; the first of `SHAPES` with which it shows a call is taken."""

    arguments_as_text: bool = False  # joined to the text as they are, not written as JSON by the template
    content_may_be_null: bool = False  # which tells a turn with calls from others
    cut_as_text: bool = False  # the template shows arguments that are no JSON; others get none instead


SHAPES: Final = tuple(TurnShape(as_text, null) for null in (False, True) for as_text in (False, True))


def _call(call: ToolCall, shape: TurnShape) -> dict[str, Any]:  # a template's variables are untyped
    """A tool call for templates: its arguments as an object, or as JSON text for templates that want that.

    Those of a call that a limit has cut are no JSON: clients send them back as the model wrote them.
    """
    arguments: object = call.function.arguments or "{}"
    if not shape.arguments_as_text:
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):  # the latter for what is nested too deeply
            arguments = arguments if shape.cut_as_text else {}
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}


def tool_of(tool: FunctionTool) -> dict[str, Any]:
    """In the form of Hugging Face's templates, which read all of these fields."""
    schema = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": schema}
    return {"type": "function", "function": function}


def turn_of(message: ChatMessage, shape: TurnShape) -> dict[str, Any]:
    content = message.content
    if content is None and not (shape.content_may_be_null and message.tool_calls):
        content = ""
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning_content is not msgspec.UNSET:
        turn["reasoning_content"] = turn["thinking"] = message.reasoning_content  # gpt-oss reads the second
    if message.name is not msgspec.UNSET:
        turn["name"] = message.name
    if message.tool_call_id is not msgspec.UNSET:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls is not msgspec.UNSET:
        turn["tool_calls"] = [_call(call, shape) for call in message.tool_calls]
    return turn
