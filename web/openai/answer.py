"""Collects a request's events into one body, for clients that did not ask for a stream."""

from collections.abc import Iterable

from ...protocol.events import ChoiceFinished, Finished, FinishReason, StreamEvent, Token, TokenLogprob
from ...protocol.openai_responses import OPENAI_REASON, AnswerBody, AnswerChoice, usage_body
from .dialect import Reply


class WholeAnswer:
    """Grows with the events of one request; its size is bounded by the request's tokens."""

    def __init__(self, reply: Reply, *, logprobs: bool) -> None:
        self._reply = reply
        self._logprobs = logprobs
        # By choice, as below.
        self._texts: list[list[str]] = [[] for _ in range(reply.choices)]
        self._scores: list[list[TokenLogprob]] = [[] for _ in range(reply.choices)]
        self._ends: dict[int, ChoiceFinished] = {}

    def extend(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, Token):
                self._texts[event.index].append(event.text)
                self._scores[event.index].extend(event.logprobs)
            elif isinstance(event, ChoiceFinished):
                self._ends[event.index] = event

    def body(self, finished: Finished) -> AnswerBody:
        choices = tuple(self._choice(index, finished.reason) for index in range(self._reply.choices))
        return self._reply.whole(choices, usage_body(finished.usage))

    def _choice(self, index: int, otherwise: FinishReason) -> AnswerChoice:
        dialect, end = self._reply.dialect, self._ends.get(index)
        reason = end.reason if end else otherwise
        return dialect.answer_choice(
            index=index,
            text=dialect.message("".join(self._texts[index])),
            logprobs=dialect.logprobs(self._scores[index]) if self._logprobs else None,
            finish_reason=OPENAI_REASON[reason],
            stop_reason=end.stop_reason if end else None,
            triolet_finish_reason=reason,
        )
