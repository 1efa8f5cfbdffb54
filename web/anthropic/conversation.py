"""Anthropic's turns as those of a chat: blocks become texts, thoughts, tool calls and their results."""

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from ...protocol.anthropic_requests import (
    AnthropicAssistantTurn,
    AnthropicTurnBody,
    AnthropicUserTurn,
    AssistantBlock,
    GivenText,
    GivenThinking,
    GivenToolResult,
    GivenToolUse,
    SystemText,
    UserBlock,
)
from ...protocol.errors import ApiError
from ...protocol.openai_messages import (
    AssistantMessage,
    FunctionCallBody,
    MessageBody,
    SystemMessage,
    ToolCallBody,
    ToolMessage,
    UserMessage,
)

Block = UserBlock | AssistantBlock | SystemText


def chat_turns(system: str | list[SystemText] | None, turns: list[AnthropicTurnBody]) -> list[MessageBody]:
    """Turns of one speaker that follow each other become one, as at Anthropic: many chat templates want that.

    Raises ApiError (400).
    """
    for index, turn in enumerate(turns):
        if isinstance(turn, AnthropicUserTurn) and turn.content == []:
            param = f"messages[{index}].content"
            raise ApiError("invalid_messages", f"{param} is empty; leave the turn out, or add a block.", param=param)
    messages: list[MessageBody] = [SystemMessage(content=_text(_blocks(system)))] if system else []
    for speaker, same in groupby(turns, type):
        blocks = [block for turn in same for block in _blocks(turn.content)]
        if speaker is AnthropicUserTurn:
            messages += _of_user(blocks)
        elif speaker is AnthropicAssistantTurn:
            messages.append(_of_assistant(blocks))
        else:
            messages.append(SystemMessage(content=_text(blocks)))
    return messages


def _blocks(content: str | Iterable[Block]) -> Iterable[Block]:
    return [GivenText(text=content)] if isinstance(content, str) else content


def _text(blocks: Iterable[Block]) -> str:
    return "\n".join([block.text for block in blocks if isinstance(block, GivenText | SystemText)])


def _of_user(blocks: list[Block]) -> Iterator[MessageBody]:
    """A message for each result, and for the texts before and after them."""
    for is_result, same in groupby(blocks, lambda block: isinstance(block, GivenToolResult)):
        if is_result:
            yield from (_result(block) for block in same if isinstance(block, GivenToolResult))
        else:
            yield UserMessage(content=_text(same))


def _result(block: GivenToolResult) -> ToolMessage:
    text = _text(_blocks(block.content or ""))
    return ToolMessage(tool_call_id=block.tool_use_id, content=f"Error: {text}" if block.is_error else text)


def _of_assistant(blocks: list[Block]) -> AssistantMessage:
    thoughts = "\n".join([block.thinking for block in blocks if isinstance(block, GivenThinking)])
    calls = [
        ToolCallBody(
            id=block.id,
            function=FunctionCallBody(name=block.name, arguments=msgspec.json.encode(block.input).decode()),
        )
        for block in blocks
        if isinstance(block, GivenToolUse)
    ]
    return AssistantMessage(content=_text(blocks), reasoning_content=thoughts or None, tool_calls=calls or None)
