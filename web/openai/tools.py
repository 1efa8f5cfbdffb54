"""The tools of a body and how they may be called, in the engine's words."""

from ...protocol.errors import ApiError
from ...protocol.openai_requests import ChatBody, TokenizeBody
from ...protocol.openai_tools import FunctionDefinition, NamedToolChoice
from ...protocol.requests import FunctionTool, ToolUse
from .json_depth import check_depth


def chat_tools(body: ChatBody | TokenizeBody) -> tuple[tuple[FunctionTool, ...], ToolUse | None]:
    """The functions that the model is told of, and how it may call them. Raises ApiError (400).

    With `tool_choice: none` it is told of none: a model that does not know a tool cannot try to call it.
    """
    tools = tuple(_tool(entry.function, f"tools[{index}].function") for index, entry in enumerate(body.tools or ()))
    choice = body.tool_choice if isinstance(body, ChatBody) else None
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError("invalid_value", "tool_choice asks for a call, and there are no tools.", param="tool_choice")
        return (), None
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools[{index}].function.name"
            raise ApiError("invalid_value", f"{param}: {name!r} is the name of another function too.", param=param)
    if isinstance(choice, NamedToolChoice):
        if choice.function.name not in names:
            param = "tool_choice.function.name"
            raise ApiError("invalid_value", f"{param}: no tool has the name {choice.function.name!r}.", param=param)
        return tools, ToolUse(choice="required", name=choice.function.name, parallel=False)
    if choice == "none":
        return (), None
    parallel = not isinstance(body, ChatBody) or body.parallel_tool_calls is not False
    return tools, ToolUse(choice=choice or "auto", parallel=parallel)


def _tool(function: FunctionDefinition, path: str) -> FunctionTool:
    schema = function.parameters or {}
    check_depth(schema, f"{path}.parameters")
    if schema.get("type", "object") != "object":
        param = f"{path}.parameters.type"
        raise ApiError("invalid_value", f"{param}: arguments are an object; send object.", param=param)
    if not isinstance(schema.get("properties", {}), dict):
        param = f"{path}.parameters.properties"
        raise ApiError("invalid_type", f"{param}: must be an object that has a schema for each argument.", param=param)
    return FunctionTool(
        name=function.name,
        description=function.description or "",
        parameters=schema,
        strict=bool(function.strict),
    )
