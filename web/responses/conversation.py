"""Items as the turns of a chat. Pure.

What the model said in one go comes as several items: thoughts, text, calls. They are one turn of the assistant's.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

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
from ...protocol.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    InputTextPart,
    ItemReference,
    MessageItem,
    MessagePart,
    OutputRefusalPart,
    ReasoningItem,
)


def turns_of(items: Iterable[InputItem], instructions: str | None) -> list[MessageBody]:
    """`instructions` and system turns that follow at once are one turn: most templates take only one, the first."""
    turns = _Turns()
    if instructions:
        turns.system(instructions)
    for item in items:
        turns.add(item)
    return turns.end()


class _Turns:
    def __init__(self) -> None:
        self._turns: list[MessageBody] = []
        # Of the assistant's turn that is still open.
        self._thoughts: str | None = None
        self._text: str | None = None
        self._calls: list[ToolCallBody] = []

    def add(self, item: InputItem) -> None:
        match item:
            case ReasoningItem():
                if self._text is not None or self._calls:
                    self.end()
                self._thoughts = (self._thoughts or "") + _thoughts(item)
            case MessageItem(role="assistant"):
                if self._text is not None or self._calls:
                    self.end()
                self._text = _text(item.content)
            case FunctionCallItem():
                function = FunctionCallBody(name=item.name, arguments=item.arguments)
                self._calls.append(ToolCallBody(id=item.call_id, function=function))
            case FunctionCallOutputItem():
                self.end()
                self._turns.append(ToolMessage(content=_text(item.output), tool_call_id=item.call_id))
            case MessageItem(role="user"):
                self.end()
                self._turns.append(UserMessage(content=_text(item.content)))
            case MessageItem():
                self.end()
                self.system(_text(item.content))
            case ItemReference():
                raise ApiError("invalid_value", f"There is no item {item.id!r} to refer to.", param="input")
            case _:
                assert_never(item)

    def system(self, text: str) -> None:
        if len(self._turns) == 1 and isinstance(first := self._turns[0], SystemMessage):
            text = f"{first.content}\n\n{text}"
            self._turns.clear()
        self._turns.append(SystemMessage(content=text))

    def end(self) -> list[MessageBody]:
        """End the assistant's turn, if one is open; returns all turns."""
        if self._thoughts is not None or self._text is not None or self._calls:
            self._turns.append(
                AssistantMessage(
                    content=self._text if self._text is not None or self._calls else "",
                    reasoning_content=self._thoughts,
                    tool_calls=self._calls or None,
                )
            )
        self._thoughts, self._text, self._calls = None, None, []
        return self._turns


def _text(content: str | Sequence[MessagePart | InputTextPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join([part.refusal if isinstance(part, OutputRefusalPart) else part.text for part in content])


def _thoughts(item: ReasoningItem) -> str:
    return "\n".join([part.text for part in item.content or item.summary])
