"""A whole message in Anthropic's form, and what its stream shares with it."""

from collections.abc import Iterable

from ...protocol.anthropic_responses import (
    STOP_REASON,
    AnswerBlock,
    AnthropicMessage,
    MessageEnd,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    message_usage,
)
from ...protocol.events import ChoiceFinished, Finished, StreamEvent
from ...protocol.requests import Generate
from ..generation.asked import Whole
from ..generation.collected import CollectedCall, CollectedChoice

ID_PREFIX = "msg_"


class WholeMessage(Whole):
    def __init__(self, request: Generate) -> None:
        self._request = request
        self._choice = CollectedChoice()

    def extend(self, events: Iterable[StreamEvent]) -> None:
        self._choice.extend(events)

    def body(self, finished: Finished) -> AnthropicMessage:
        end = message_end(self._request, self._choice.end, finished)
        return AnthropicMessage(
            id=ID_PREFIX + self._request.id,
            model=self._request.served_as,
            content=self._content(),
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=message_usage(finished.usage),
        )

    def _content(self) -> list[AnswerBlock]:
        blocks: list[AnswerBlock] = []
        if self._choice.thoughts:
            blocks.append(ThinkingBlock(thinking=self._choice.thoughts))
        if self._choice.text:
            blocks.append(TextBlock(text=self._choice.text))
        return [*blocks, *map(_call_block, self._choice.calls)]


def _call_block(call: CollectedCall) -> AnswerBlock:
    arguments = call.arguments_object()
    if arguments is None:  # `input` is an object, and must not seem to be whole
        return TextBlock(text=call.as_text)
    return ToolUseBlock(id=call.id, name=call.name, input=arguments)


def message_end(request: Generate, end: ChoiceFinished | None, finished: Finished) -> MessageEnd:
    """Why the message ended: as its choice did, or as the request did before it."""
    reason = finished.reason if end is None else end.reason
    if reason == "length" and request.max_tokens and finished.usage.completion_tokens < request.max_tokens:
        return MessageEnd(stop_reason="model_context_window_exceeded", stop_sequence=None)
    if end is not None and reason == "stop" and isinstance(end.stop_reason, str):
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=end.stop_reason)
    return MessageEnd(stop_reason=STOP_REASON[reason], stop_sequence=None)
