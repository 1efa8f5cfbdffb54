"""What the events of one choice say, put together: its text, its thoughts and its tool calls."""

from collections.abc import Iterable
from math import fsum
from typing import Any, Final

import msgspec

from ...protocol.events import CallStart, ChoiceFinished, PromptTokens, StreamEvent, Token, TokenLogprob


class CollectedCall:
    """One tool call. `arguments` is JSON text, complete if the choice did not end inside it."""

    def __init__(self, start: CallStart) -> None:
        self.id: Final = start.id
        self.name: Final = start.name
        self.pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def arguments_object(self) -> dict[str, Any] | None:  # Any: JSON values
        """The arguments decoded; None if they are no JSON, as those of a call that a limit has cut."""
        try:
            return msgspec.json.decode(self.arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):  # the latter for arguments nested too deeply
            return None

    @property
    def as_text(self) -> str:
        """For dialects whose calls hold an object: what was written of a cut call, in the form of most models."""
        return f'{{"name": {msgspec.json.encode(self.name).decode()}, "arguments": {self.arguments}'


class CollectedChoice:
    """Grows with the tokens of one choice; its size is bounded by their number."""

    def __init__(self) -> None:
        self.calls: list[CollectedCall] = []
        self.logprobs: list[TokenLogprob] = []
        self.token_ids: list[int] = []
        self.prompt: PromptTokens | None = None
        self.end: ChoiceFinished | None = None
        self._generated: list[float] = []
        self._text: list[str] = []
        self._thoughts: list[str] = []

    @property
    def mean(self) -> float:
        """The mean log probability of the generated tokens, if they have any."""
        return fsum(self._generated) / max(len(self._generated), 1)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def thoughts(self) -> str:
        return "".join(self._thoughts)

    def extend(self, events: Iterable[StreamEvent]) -> None:
        """Take the tokens of an answer's only choice, and its end."""
        for event in events:
            if isinstance(event, Token):
                self.add(event)
            elif isinstance(event, ChoiceFinished):
                self.end = event

    def add(self, token: Token) -> None:
        self.logprobs.extend(token.logprobs)
        if token.tokens or any(scores.stops for scores in token.logprobs):  # else it is the echo of the prompt
            self._generated += [scores.logprob for scores in token.logprobs if scores.logprob is not None]
        self.token_ids.extend(token.token_ids)
        if token.kind == "text":
            self._text.append(token.text)
        elif token.kind == "reasoning":
            self._thoughts.append(token.text)
        else:
            if token.starts is not None:
                self.calls.append(CollectedCall(token.starts))
            self.calls[token.call].pieces.append(token.text)
