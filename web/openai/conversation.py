"""A chat's turns and template options as a `ChatPrompt`."""

from typing import Any

from msgspec import UNSET, UnsetType

from ...protocol.errors import ApiError
from ...protocol.openai_messages import (
    AnswerTextPart,
    AssistantMessage,
    DeveloperMessage,
    FunctionCallBody,
    FunctionMessage,
    MessageBody,
    RefusalPart,
    TextPart,
    ToolMessage,
)
from ...protocol.openai_requests import ChatBody, TokenizeBody
from ...protocol.requests import ChatMessage, ChatPrompt, FunctionCall, ToolCall
from ..large_json import LARGE, check_values
from .json_depth import check_depth
from .thinking import thinking_wish
from .tools import chat_tools


def chat_prompt(body: ChatBody | TokenizeBody) -> ChatPrompt:
    """The conversation of a body that has one. Raises ApiError (400)."""
    messages = body.messages or []
    turns = tuple([_turn(message, index) for index, message in enumerate(messages)])
    continues = bool(body.continue_final_message)
    if continues:
        last = messages[-1]
        if not isinstance(last, AssistantMessage) or not turns[-1].content or last.tool_calls or last.function_call:
            problem = "continue_final_message needs a last message of the assistant with text and without tool calls."
            raise ApiError("invalid_value", problem, param="continue_final_message")
        if body.add_generation_prompt:
            problem = "add_generation_prompt begins a new message; leave it out with continue_final_message."
            raise ApiError("invalid_value", problem, param="add_generation_prompt")
    documents = tuple(body.documents or ()) if isinstance(body, ChatBody) else ()
    check_depth(documents, "documents")
    return ChatPrompt(
        messages=turns,
        tools=chat_tools(body)[0],
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        add_special_tokens=bool(body.add_special_tokens),
        documents=documents,
        template_variables=_template_variables(body),
    )


def without_empty_end(messages: list[MessageBody]) -> list[MessageBody]:
    """The turns without those of the assistant at the end that say nothing: there is no text to continue.

    Raises ApiError (400) if no turn is left, or if the last one has thoughts without a text.
    """
    end = len(messages)
    while end:
        last = messages[end - 1]
        if not isinstance(last, AssistantMessage) or last.content or last.tool_calls:
            return messages[:end]
        if last.reasoning_content:
            problem = "messages: the last turn has thoughts and no text to continue; leave it out, or add its text."
            raise ApiError("invalid_messages", problem, param="messages")
        end -= 1
    raise ApiError("invalid_messages", "messages: no turn says anything; add one of the user.", param="messages")


def _template_variables(body: ChatBody | TokenizeBody) -> dict[str, Any]:  # Any: JSON values
    variables = dict(body.chat_template_kwargs or {})
    check_depth(variables, "chat_template_kwargs")
    return {**thinking_wish(body).variables, **variables} if isinstance(body, ChatBody) else variables


def _turn(message: MessageBody, index: int) -> ChatMessage:
    if isinstance(message, AssistantMessage):
        return _assistant(message, index)
    role = str(message.__struct_config__.tag)
    call_id: str | UnsetType = UNSET
    if isinstance(message, DeveloperMessage):
        role = "system"
    elif isinstance(message, FunctionMessage):
        role, call_id = "tool", _function_call_id(index - 1)
    elif isinstance(message, ToolMessage):
        call_id = message.tool_call_id
    return ChatMessage(
        role=role,
        content=_text(message.content),
        name=UNSET if message.name is None else message.name,
        tool_call_id=call_id,
    )


def _assistant(message: AssistantMessage, index: int) -> ChatMessage:
    calls = [ToolCall(id=call.id, function=_function(call.function)) for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(ToolCall(id=_function_call_id(index), function=_function(message.function_call)))
    content = message.refusal if message.content is None else _text(message.content)
    reasoning = message.reasoning_content or message.reasoning
    if content is None and not calls:
        raise ApiError(
            "invalid_messages",
            f"messages[{index}].content may be null only beside tool_calls.",
            param=f"messages[{index}].content",
        )
    return ChatMessage(
        role="assistant",
        content=content,
        reasoning_content=reasoning or UNSET,
        name=UNSET if message.name is None else message.name,
        tool_calls=tuple(calls) or UNSET,
    )


def _function(call: FunctionCallBody) -> FunctionCall:
    if len(call.arguments) > LARGE:  # JSON in JSON: the chat template decodes it
        check_values(call.arguments.encode())
    return FunctionCall(name=call.name, arguments=call.arguments)


def _function_call_id(index: int) -> str:
    """Calls of the older form have no id. Nine letters and digits: Mistral's templates want that many."""
    return f"call{index:05d}"


def _text(content: str | list[TextPart] | list[AnswerTextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join([part.refusal if isinstance(part, RefusalPart) else part.text for part in content])
