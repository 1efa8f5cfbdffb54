"""An Anthropic body as a chat, so that one place knows the model's defaults, its limits and its tools."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from ...protocol.anthropic_requests import (
    AnthropicOutputConfig,
    AnthropicThinking,
    AnthropicTool,
    AnthropicToolChoice,
    CountTokensBody,
    MessagesBody,
)
from ...protocol.errors import ApiError
from ...protocol.openai_formats import NamedSchema, ResponseFormatJsonSchema
from ...protocol.openai_messages import AssistantMessage
from ...protocol.openai_requests import ChatBody
from ...protocol.openai_tools import ChosenFunction, FunctionDefinition, NamedToolChoice, ToolBody, ToolChoiceWord
from ...protocol.requests import ChatPrompt, Generate
from ..generation.asked import Origin, ServedModel
from ..openai.conversation import chat_prompt, without_empty_end
from ..openai.decode import refuse_unsupported
from ..openai.request import generate_from_chat, named_adapter, stop_strings
from .conversation import chat_turns

SCHEMA: Final = "output_config.format.schema"
_NAMES: Final = (  # of the same fields in a chat
    ("response_format.json_schema.schema", SCHEMA),
    (".function.parameters", ".input_schema"),
    (".function.name", ".name"),
)


def generate_from_messages(body: MessagesBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    chat = msgspec.structs.replace(
        _chat(body),
        stream=body.stream,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        deadline_ms=body.deadline_ms,
        ttft_deadline_ms=body.ttft_deadline_ms,
    )
    stop = stop_strings(body.stop_sequences, served.limits, "stop_sequences")
    with _anthropics_names():
        request = generate_from_chat(chat, served, origin)
    # The compiler's errors name the fields as well.
    source, use = request.grammar_source, request.tool_use
    return msgspec.structs.replace(
        request,
        stop=stop,
        ends_at_context=True,
        grammar_source=source and msgspec.structs.replace(source, param=SCHEMA),
        tool_use=use and msgspec.structs.replace(use, schema_field="input_schema"),
    )


def prompt_to_count(body: CountTokensBody, served: ServedModel, fallbacks: tuple[str, ...]) -> ChatPrompt:
    """Raises ApiError (400, 404)."""
    named_adapter(body.model, served, fallbacks)
    with _anthropics_names():
        return chat_prompt(_chat(body))


@contextmanager
def _anthropics_names() -> Generator[None]:
    """An error about the chat names the fields of the body."""
    try:
        yield
    except ApiError as error:
        message, param = error.message, error.param or ""
        for theirs, ours in _NAMES:
            message, param = message.replace(theirs, ours), param.replace(theirs, ours)
        raise ApiError(error.code, message, param=param or None) from None


def _chat(body: CountTokensBody) -> ChatBody:
    """What becomes the prompt."""
    refuse_unsupported(body)
    _check_thinking(body.thinking)
    messages = without_empty_end(chat_turns(body.system, body.messages))
    last = messages[-1]
    if isinstance(last, AssistantMessage) and last.tool_calls:
        message = "messages: the last turn has a tool_use without a tool_result in a user's turn behind it."
        raise ApiError("invalid_messages", message, param="messages")
    effort = body.output_config.effort if body.output_config is not None else None
    thinking, choice = body.thinking, body.tool_choice
    return ChatBody(
        model=body.model,
        messages=messages,
        continue_final_message=isinstance(last, AssistantMessage),
        chat_template_kwargs={} if effort is None else {"reasoning_effort": effort},
        enable_thinking=_thinks(thinking),
        thinking_token_budget=thinking.budget_tokens if thinking else None,
        include_reasoning=_thinks(thinking) and thinking is not None and thinking.display != "omitted",
        tools=[_tool(tool) for tool in body.tools or ()],
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=_response_format(body.output_config),
    )


def _response_format(config: AnthropicOutputConfig | None) -> ResponseFormatJsonSchema | None:
    if config is None or config.format is None:
        return None
    return ResponseFormatJsonSchema(json_schema=NamedSchema(name="answer", schema=config.format.schema, strict=True))


def _tool(tool: AnthropicTool) -> ToolBody:
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return ToolBody(type="function", function=function)


def _tool_choice(choice: AnthropicToolChoice | None) -> ToolChoiceWord | NamedToolChoice | None:
    """Raises ApiError (400)."""
    if choice is None:
        return None
    if (choice.name is not None) != (choice.type == "tool"):
        problem = "is for the type tool" if choice.type != "tool" else "is missing; the type tool needs it"
        raise ApiError("invalid_value", f"tool_choice.name {problem}.", param="tool_choice.name")
    if choice.name is not None:
        return NamedToolChoice(type="function", function=ChosenFunction(name=choice.name))
    return "required" if choice.type == "any" else "none" if choice.type == "none" else "auto"


def _thinks(thinking: AnthropicThinking | None) -> bool:
    """Off unless it is asked for, as at Anthropic: programs read the text of the first block."""
    return thinking is not None and thinking.type != "disabled"


def _check_thinking(thinking: AnthropicThinking | None) -> None:
    if thinking is None:
        return
    if (thinking.budget_tokens is not None) != (thinking.type == "enabled"):
        problem = "is for the type enabled" if thinking.type != "enabled" else "is missing; the type enabled needs it"
        raise ApiError("invalid_value", f"thinking.budget_tokens {problem}.", param="thinking.budget_tokens")
