"""Ollama's turns as those of a chat. A tool's turn need not say which call it answers: then it is the next."""

import msgspec

from ...protocol.errors import ApiError
from ...protocol.ollama_requests import OllamaTurn
from ...protocol.openai_messages import (
    AssistantMessage,
    FunctionCallBody,
    MessageBody,
    SystemMessage,
    ToolCallBody,
    ToolMessage,
    UserMessage,
)


def chat_turns(turns: list[OllamaTurn]) -> list[MessageBody]:
    """Raises ApiError (400)."""
    messages: list[MessageBody] = []
    unanswered: list[ToolCallBody] = []
    for index, turn in enumerate(turns):
        content = turn.content or ""
        if turn.role == "assistant":
            unanswered = [
                ToolCallBody(
                    id=call.id or f"call{index:03d}{number:02d}",  # nine characters, as Mistral's templates want
                    function=FunctionCallBody(
                        name=call.function.name, arguments=msgspec.json.encode(call.function.arguments).decode()
                    ),
                )
                for number, call in enumerate(turn.tool_calls or ())
            ]
            thoughts, calls = turn.thinking or None, list(unanswered) or None
            messages.append(AssistantMessage(content=content, reasoning_content=thoughts, tool_calls=calls))
            continue
        for name, given in (("tool_calls", turn.tool_calls), ("thinking", turn.thinking)):
            if given:
                param = f"messages[{index}].{name}"
                raise ApiError("invalid_messages", f"{param} is for turns of the assistant.", param=param)
        if turn.role == "tool":
            id = turn.tool_call_id or _answered(unanswered, turn.tool_name, index)
            messages.append(ToolMessage(content=content, tool_call_id=id, name=turn.tool_name))
        elif turn.role == "system":
            messages.append(SystemMessage(content=content))
        else:
            messages.append(UserMessage(content=content))
    return messages


def _answered(unanswered: list[ToolCallBody], name: str | None, index: int) -> str:
    for number, call in enumerate(unanswered):
        if name in (None, call.function.name):
            return unanswered.pop(number).id
    param = f"messages[{index}]"
    raise ApiError("invalid_messages", f"{param} answers no tool call of the assistant before it.", param=param)
