"""A stream's events collected into one body, for clients that did not ask to stream."""

from collections.abc import Iterable

from ...protocol.events import ChoiceFinished, Finished, FinishReason, StreamEvent, Token, TokenLogprob
from ...protocol.openai_responses import (
    OPENAI_REASON,
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    usage_body,
)
from .chunks import Reply
from .logprobs import chat_logprobs, completion_logprobs


class _Choice:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: ChoiceFinished | None = None


class Answer:
    """Grows with the events of one request; its size is bounded by the request's tokens."""

    def __init__(self, reply: Reply, *, logprobs: bool) -> None:
        self._reply = reply
        self._logprobs = logprobs
        self._choices = [_Choice() for _ in range(reply.choices)]

    def extend(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, Token):
                choice = self._choices[event.index]
                choice.text.append(event.text)
                choice.logprobs.extend(event.logprobs)
            elif isinstance(event, ChoiceFinished):
                self._choices[event.index].end = event

    def body(self, finished: Finished) -> ChatCompletion | Completion:
        reply = self._reply
        usage = usage_body(finished.usage)
        if reply.dialect == "chat":
            chat = [self._chat_choice(index, finished.reason) for index in range(reply.choices)]
            return ChatCompletion(id=reply.id, created=reply.created, model=reply.model, choices=chat, usage=usage)
        choices = [self._completion_choice(index, finished.reason) for index in range(reply.choices)]
        return Completion(id=reply.id, created=reply.created, model=reply.model, choices=choices, usage=usage)

    def _chat_choice(self, index: int, otherwise: FinishReason) -> ChatChoice:
        choice = self._choices[index]
        reason = choice.end.reason if choice.end else otherwise
        return ChatChoice(
            index=index,
            message=AnswerMessage(content="".join(choice.text)),
            logprobs=chat_logprobs(choice.logprobs) if self._logprobs else None,
            finish_reason=OPENAI_REASON[reason],
            stop_reason=choice.end.stop_reason if choice.end else None,
            triolet_finish_reason=reason,
        )

    def _completion_choice(self, index: int, otherwise: FinishReason) -> CompletionChoice:
        choice = self._choices[index]
        reason = choice.end.reason if choice.end else otherwise
        return CompletionChoice(
            index=index,
            text="".join(choice.text),
            logprobs=completion_logprobs(choice.logprobs) if self._logprobs else None,
            finish_reason=OPENAI_REASON[reason],
            stop_reason=choice.end.stop_reason if choice.end else None,
            triolet_finish_reason=reason,
        )
