"""A request's tools, as chats have them: what a function is stands in the tool itself here. Pure."""

from ...protocol.errors import ApiError
from ...protocol.openai_tools import (
    ChosenFunction,
    FunctionDefinition,
    NamedToolChoice,
    ToolBody,
    ToolChoiceWord,
)
from ...protocol.response_requests import AllowedTools, CreateResponse, FunctionChoice


def tools_of(body: CreateResponse) -> list[ToolBody] | None:
    """The model is not told of functions that it may not call. Raises ApiError (400)."""
    choice = body.tool_choice
    allowed = {tool.name for tool in choice.tools} if isinstance(choice, AllowedTools) else None
    if unknown := (allowed or set()) - {tool.name for tool in body.tools or ()}:
        message = f"tool_choice.tools: no tool has the name {min(unknown)!r}."
        raise ApiError("invalid_value", message, param="tool_choice.tools")
    return [
        ToolBody(
            type="function",
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
            ),
        )
        for tool in body.tools or ()
        if allowed is None or tool.name in allowed
    ] or None


def tool_choice_of(body: CreateResponse) -> ToolChoiceWord | NamedToolChoice | None:
    match body.tool_choice:
        case FunctionChoice(name=name):
            return NamedToolChoice(type="function", function=ChosenFunction(name=name))
        case AllowedTools(mode=mode):
            return mode
        case word:
            return word
