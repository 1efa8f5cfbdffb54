"""Collects a request's events into one body, for clients that did not ask for a stream."""

from collections.abc import Iterable, Iterator

from msgspec import UNSET

from ...protocol.events import ChoiceFinished, Finished, FinishReason, PromptTokens, StreamEvent, Token
from ...protocol.openai_responses import OPENAI_REASON, AnswerBody, AnswerChoice, usage_body
from ..generation.asked import Whole
from ..generation.collected import CollectedChoice
from .dialect import NO_PROMPT, PromptFields, Reply


class WholeAnswer(Whole):
    def __init__(self, reply: Reply, *, logprobs: bool) -> None:
        self._reply = reply
        self._logprobs = logprobs
        self._choices = [CollectedChoice() for _ in range(reply.choices)]

    def extend(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, Token):
                self._choices[event.index].add(event)
            elif isinstance(event, ChoiceFinished):
                self._choices[event.index].end = event
            elif isinstance(event, PromptTokens):
                self._choices[event.index].prompt = event

    def body(self, finished: Finished) -> AnswerBody:
        choices = tuple(self._choice(index, place, finished.reason) for place, index in enumerate(self._chosen()))
        prompt = NO_PROMPT if self._reply.dialect.prompt_in_choice else self._prompt(0)
        return self._reply.whole(choices, usage_body(finished.usage), prompt)

    def _prompt(self, index: int) -> PromptFields:
        return self._reply.prompt_fields(self._choices[index].prompt)

    def _chosen(self) -> Iterator[int]:
        """The choices of the answer: all, or of each prompt the best by the mean log probability of their tokens.

        Those of a beam search come best first.
        """
        best, of = self._reply.best, self._reply.of
        for start in range(0, self._reply.choices, of):
            group = range(start, start + of)
            drawn = best < of and not self._reply.beams
            yield from (sorted(group, key=lambda index: -self._choices[index].mean) if drawn else group)[:best]

    def _choice(self, index: int, place: int, otherwise: FinishReason) -> AnswerChoice:
        dialect, choice = self._reply.dialect, self._choices[index]
        end = choice.end
        reason = end.reason if end else otherwise
        return dialect.answer_choice(
            index=place,
            text=dialect.message(choice),
            logprobs=dialect.logprobs(choice.logprobs) if self._logprobs else None,
            finish_reason=OPENAI_REASON[reason],
            stop_reason=end.stop_reason if end else None,
            triolet_finish_reason=reason,
            token_ids=tuple(choice.token_ids) if self._reply.token_ids else UNSET,
            **(self._prompt(index) if dialect.prompt_in_choice else NO_PROMPT),
        )
