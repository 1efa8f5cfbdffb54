"""A whole answer in Ollama's form, and what its stream shares with it."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from ...protocol.events import Finished, StreamEvent, TokenLogprob
from ...protocol.ollama_responses import (
    OllamaCall,
    OllamaCalledFunction,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaMessage,
    end_fields,
)
from ..generation.asked import Whole
from ..generation.collected import CollectedCall, CollectedChoice
from ..openai.logprobs import chat_logprobs


class OllamaReply(NamedTuple):
    """Values that every piece of one answer repeats."""

    chat: bool  # otherwise the answer of a generation
    model: str  # as the client calls it
    created_at: str

    def piece(
        self,
        text: str = "",
        thinking: str = "",
        calls: Sequence[OllamaCall] = (),
        logprobs: Sequence[TokenLogprob] = (),
        **end: Any,  # Any: of the fields of the last piece
    ) -> OllamaChatAnswer | OllamaGenerateAnswer:
        thoughts = thinking or UNSET
        end["logprobs"] = chat_logprobs(logprobs).content if logprobs else UNSET
        if not self.chat:
            return OllamaGenerateAnswer(
                response=text, thinking=thoughts, model=self.model, created_at=self.created_at, **end
            )
        message = OllamaMessage(content=text, thinking=thoughts, tool_calls=list(calls) or UNSET)
        return OllamaChatAnswer(message=message, model=self.model, created_at=self.created_at, **end)


class WholeOllamaAnswer(Whole):
    def __init__(self, reply: OllamaReply) -> None:
        self._reply = reply
        self._choice = CollectedChoice()

    def extend(self, events: Iterable[StreamEvent]) -> None:
        self._choice.extend(events)

    def body(self, finished: Finished) -> OllamaChatAnswer | OllamaGenerateAnswer:
        choice = self._choice
        calls, cut = ollama_calls(choice.calls)
        return self._reply.piece(
            choice.text + cut,
            choice.thoughts,
            calls,
            choice.logprobs,
            **end_fields(finished, choice.end.reason if choice.end else finished.reason),
        )


def ollama_calls(calls: Iterable[CollectedCall], first: int = 0) -> tuple[list[OllamaCall], str]:
    """Numbered from `first`; and the text of one that a limit has cut, for a call's arguments are an object here."""
    whole: list[OllamaCall] = []
    for number, call in enumerate(calls, first):
        arguments = call.arguments_object()
        if arguments is None:
            return whole, call.as_text
        function = OllamaCalledFunction(index=number, name=call.name, arguments=arguments)
        whole.append(OllamaCall(id=call.id, function=function))
    return whole, ""
