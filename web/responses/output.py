"""The output items of an answer, as its tokens come: each change is an event of the stream.

A message, the thoughts before it, each call of a function: one item is open at a time. Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from ...protocol.events import CallStart, Token, TokenLogprob
from ...protocol.openai_responses import TokenLogprobBody
from ...protocol.response_answers import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    ItemStatus,
    OutputFunctionCall,
    OutputItem,
    OutputItemAdded,
    OutputItemDone,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTextDelta,
    OutputTextDone,
    ReasoningText,
    ReasoningTextDelta,
    ReasoningTextDone,
    StreamedEvent,
)
from ..openai.logprobs import chat_logprobs

Next = Callable[[], int]  # the next event's sequence number


class OpenItem(ABC):
    """The item that grows. `place` is its index in the output."""

    prefix: str  # of its id

    def __init__(self, id: str, place: int) -> None:
        self.id = f"{self.prefix}_{id}_{place}"
        self.place = place
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, text: str) -> None:
        self._pieces.append(text)

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """The item with what it has so far."""

    @abstractmethod
    def begin(self, number: Next) -> list[StreamedEvent]:
        """Called before anything is added."""

    @abstractmethod
    def delta(self, number: Next, text: str, scores: list[TokenLogprobBody]) -> StreamedEvent: ...

    @abstractmethod
    def end(self, number: Next) -> list[StreamedEvent]:
        """Its text is complete."""


class OpenMessage(OpenItem):
    prefix = "msg"

    def __init__(self, id: str, place: int) -> None:
        super().__init__(id, place)
        self._scores: list[TokenLogprobBody] = []

    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=self._scores)

    def item(self, status: ItemStatus) -> OutputMessage:
        return OutputMessage(id=self.id, status=status, content=[self._part()])

    def begin(self, number: Next) -> list[StreamedEvent]:
        item = OutputMessage(id=self.id, status="in_progress", content=[])
        return [
            OutputItemAdded(sequence_number=number(), output_index=self.place, item=item),
            ContentPartAdded(
                sequence_number=number(), output_index=self.place, item_id=self.id, part=OutputText(text="")
            ),
        ]

    def delta(self, number: Next, text: str, scores: list[TokenLogprobBody]) -> StreamedEvent:
        self._scores += scores
        return OutputTextDelta(
            sequence_number=number(), output_index=self.place, item_id=self.id, delta=text, logprobs=scores
        )

    def end(self, number: Next) -> list[StreamedEvent]:
        part = self._part()
        place, id = self.place, self.id
        return [
            OutputTextDone(
                sequence_number=number(), output_index=place, item_id=id, text=part.text, logprobs=part.logprobs
            ),
            ContentPartDone(sequence_number=number(), output_index=place, item_id=id, part=part),
        ]


class OpenReasoning(OpenItem):
    prefix = "rs"

    def item(self, status: ItemStatus) -> OutputReasoning:
        return OutputReasoning(id=self.id, status=status, content=[ReasoningText(text=self.text)])

    def begin(self, number: Next) -> list[StreamedEvent]:
        item = OutputReasoning(id=self.id, status="in_progress", content=[])
        return [
            OutputItemAdded(sequence_number=number(), output_index=self.place, item=item),
            ContentPartAdded(
                sequence_number=number(), output_index=self.place, item_id=self.id, part=ReasoningText(text="")
            ),
        ]

    def delta(self, number: Next, text: str, scores: list[TokenLogprobBody]) -> StreamedEvent:
        return ReasoningTextDelta(sequence_number=number(), output_index=self.place, item_id=self.id, delta=text)

    def end(self, number: Next) -> list[StreamedEvent]:
        part = ReasoningText(text=self.text)
        place, id = self.place, self.id
        return [
            ReasoningTextDone(sequence_number=number(), output_index=place, item_id=id, text=part.text),
            ContentPartDone(sequence_number=number(), output_index=place, item_id=id, part=part),
        ]


class OpenCall(OpenItem):
    prefix = "fc"

    def __init__(self, id: str, place: int, call: CallStart) -> None:
        super().__init__(id, place)
        self._call = call

    def item(self, status: ItemStatus) -> OutputFunctionCall:
        call = self._call
        return OutputFunctionCall(id=self.id, status=status, call_id=call.id, name=call.name, arguments=self.text)

    def begin(self, number: Next) -> list[StreamedEvent]:
        return [OutputItemAdded(sequence_number=number(), output_index=self.place, item=self.item("in_progress"))]

    def delta(self, number: Next, text: str, scores: list[TokenLogprobBody]) -> StreamedEvent:
        return ArgumentsDelta(sequence_number=number(), output_index=self.place, item_id=self.id, delta=text)

    def end(self, number: Next) -> list[StreamedEvent]:
        return [
            ArgumentsDone(
                sequence_number=number(),
                output_index=self.place,
                item_id=self.id,
                name=self._call.name,
                arguments=self.text,
            )
        ]


_ITEM_OF_KIND: Final = {"text": OpenMessage, "reasoning": OpenReasoning}


class Output:
    """All items of one answer. `id` is the part of the items' ids that is the request's own."""

    def __init__(self, id: str, number: Next) -> None:
        self._id = id
        self._number = number
        self.items: list[OutputItem] = []  # those that are closed
        self.open: OpenItem | None = None
        self._waiting: list[TokenLogprobBody] = []  # of text that is held back

    def token(self, token: Token) -> list[StreamedEvent]:
        """The events of one token; none if its text is held back."""
        scores = self._waiting + _scores(token.logprobs)
        if not (token.text or token.starts):
            self._waiting = scores
            return []
        self._waiting = []
        events = self._turn_to(token)
        if token.text and self.open is not None:
            self.open.add(token.text)
            events.append(self.open.delta(self._number, token.text, scores))
        return events

    def close(self, status: ItemStatus = "completed") -> list[StreamedEvent]:
        """End the open item, if there is one."""
        ended, self.open = self.open, None
        if ended is None:
            return []
        item = ended.item(status)
        self.items.append(item)
        number = self._number
        return [
            *ended.end(number),
            OutputItemDone(sequence_number=number(), output_index=ended.place, item=item),
        ]

    def _turn_to(self, token: Token) -> list[StreamedEvent]:
        """Close the open item and begin another, unless the token belongs to it."""
        if token.starts is None and (token.kind == "tool" or type(self.open) is _ITEM_OF_KIND[token.kind]):
            return []
        events = self.close()
        place = len(self.items)
        if token.starts is not None:
            self.open = OpenCall(self._id, place, token.starts)
        else:
            self.open = _ITEM_OF_KIND[token.kind](self._id, place)
        return [*events, *self.open.begin(self._number)]


def _scores(logprobs: Iterable[TokenLogprob]) -> list[TokenLogprobBody]:
    """Without those of stop tokens, which are no part of the text."""
    return chat_logprobs(token for token in logprobs if not token.stops).content
