"""What each conversation asks. Pure: only the seed and its number decide it, never the other conversations.

So two runs with the same seed send the same requests, which can be compared in pairs.
"""

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from .lengths import draw_length, draw_value
from .mix import Client, draw_client
from .settings import LoadSettings
from .traces import TracedRequest
from .words import TokensPerWord, text_of


class PlannedTurn(Struct, frozen=True, kw_only=True):
    text: str
    prompt_tokens: int  # requested length of this turn's text, plus the shared prefix in the first turn
    output_tokens: int
    think_seconds: float  # before this turn; 0 for the first


class ConversationPlan(Struct, frozen=True, kw_only=True):
    number: int
    client: Client
    turns: tuple[PlannedTurn, ...]


class Workload:
    """Plans one conversation after another; `trace` gives the lengths if the arrivals are a recorded trace."""

    def __init__(
        self, settings: LoadSettings, words: TokensPerWord | None = None, trace: Sequence[TracedRequest] = ()
    ) -> None:
        self._settings = settings
        self._words = words or TokensPerWord()
        self._trace = trace
        prefix = settings.shared_prefix
        self._prefix_tokens = round(prefix.value) if prefix.share else 0
        length = self._words.words_for(self._prefix_tokens) if self._prefix_tokens else 0
        self._prefix = text_of(length, Random(f"prefix {settings.seed}"))

    def conversation(self, number: int) -> ConversationPlan:
        settings = self._settings
        draw = Random(f"conversation {settings.seed} {number}")
        client = draw_client(settings.mix, draw)
        shares = draw.random() < settings.shared_prefix.share
        count = draw_length(settings.turns, draw)
        return ConversationPlan(
            number=number, client=client, turns=tuple(self._turn(number, index, shares, draw) for index in range(count))
        )

    def _turn(self, number: int, index: int, shares: bool, draw: Random) -> PlannedTurn:
        settings = self._settings
        if self._trace:
            traced = self._trace[number % len(self._trace)]
            prompt, output = traced.prompt_tokens, traced.output_tokens
        else:
            prompt, output = draw_length(settings.prompt_tokens, draw), draw_length(settings.output_tokens, draw)
        text = text_of(self._words.words_for(prompt), draw)
        if shares and index == 0:
            prompt += self._prefix_tokens
            text = f"{self._prefix} {text}"
        return PlannedTurn(
            text=text,
            prompt_tokens=prompt,
            output_tokens=output,
            think_seconds=draw_value(settings.think_seconds, draw) if index else 0.0,
        )
