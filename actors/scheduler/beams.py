"""Beam search: which beginnings of an answer go on, and which answers are the best. Pure.

The result is that of transformers' `generate(num_beams=width)`. In a round, every live beam gets its most probable next
tokens. Of all these candidates, by the sum of their log probabilities, the first `width` that do not stop are the next
live beams. One that stops is an answer if it is among the first `width`. An answer's score is its sum, divided by its
length to the power of the length penalty; the stop token counts. The best `width` answers are kept.
"""

import math
from typing import NamedTuple

from ...protocol.events import TokenLogprob, TopLogprob
from ...protocol.requests import BeamRule
from ...protocol.steps import Row


class Beam(NamedTuple):
    """A beginning of an answer, or a whole one. `score` has the length penalty only once it is whole."""

    score: float
    tokens: tuple[TokenLogprob, ...]
    stops: bool = False


class Move(NamedTuple):
    """What a choice computes from now on. It `goes_on` if the worker has sampled this very token for it already."""

    choice: int
    beam: Beam
    goes_on: bool


class BeamSearch:
    """The search for the answers to one prompt. Each live beam is computed by one of its choices."""

    def __init__(
        self, rule: BeamRule, choices: range, stops: frozenset[int] = frozenset(), min_tokens: int = 0, top: int = 0
    ) -> None:
        """`top`: how many alternatives a token keeps. Before `min_tokens` no token stops, and those that would do not
        come."""
        self.choices = choices
        self.answers: list[Beam] = []  # best first
        self._rule = rule
        self._stops = stops
        self._min_tokens = min_tokens
        self._top = top
        self._live = [Beam(0.0, ())]  # best first
        self._held_by = list(choices)  # by the place of a live beam; at first all compute the prompt, and one counts
        self._rows: dict[int, Row] = {}

    def waits(self, choice: int) -> bool:
        """Whether a choice has nothing to compute before the other beams' tokens have come."""
        return choice in self._rows or choice not in self._held_by

    def take(self, choice: int, row: Row) -> bool:
        """Take in the next tokens of a choice. Once all have come, which this returns, the next round is due."""
        self._rows[choice] = row
        return len(self._rows) == len(self._held_by)

    def next_round(self, max_tokens: int) -> list[Move]:
        """The live beams from now on; none if the search is over."""
        width, length = len(self.choices), len(self._live[0].tokens) + 1
        last = length == max_tokens
        live: list[tuple[int, Beam]] = []  # with the places of their parents
        for rank, (score, place, token) in enumerate(self._candidates(length > self._min_tokens)):
            stops = token.token_id in self._stops
            if rank < width and (stops or last):
                self.answers.append(Beam(self._penalised(score, length), self._path(place, token), stops))
            if not stops and not last and len(live) < width:
                live.append((place, Beam(score, self._path(place, token))))
        self.answers = sorted(self.answers, key=lambda answer: -answer.score)[:width]
        rows, holders = self._rows, self._held_by
        self._live, self._held_by, self._rows = [beam for _, beam in live], [], {}
        if not live or self._is_decided(length, max_tokens):
            return []
        moves = [Move(holders[at], new, rows[holders[at]].tokens[0] == new.tokens[-1].token_id) for at, new in live]
        staying = {move.choice for move in moves if move.goes_on}
        free = (choice for choice in self.choices if choice not in staying)
        moves = [move if move.goes_on else move._replace(choice=next(free)) for move in moves]
        self._held_by = [move.choice for move in moves]
        return moves

    def _candidates(self, may_stop: bool) -> list[tuple[float, int, TopLogprob]]:
        """The continuations of all live beams, most probable first; of equal ones those of the better beam.

        Each with the sum of its log probabilities and the place of its parent.
        """
        found = [
            (beam.score + token.logprob, place, token)
            for place, beam in enumerate(self._live)
            for token in self._top_of(place)
            if may_stop or token.token_id not in self._stops
        ]
        return sorted(found, key=lambda candidate: -candidate[0])

    def _top_of(self, place: int) -> tuple[TopLogprob, ...]:
        return self._rows[self._held_by[place]].logprobs[0].top

    def _path(self, place: int, token: TopLogprob) -> tuple[TokenLogprob, ...]:
        shown = self._top_of(place)[: self._top]
        return (*self._live[place].tokens, TokenLogprob(token_id=token.token_id, logprob=token.logprob, top=shown))

    def _is_decided(self, length: int, max_tokens: int) -> bool:
        """Whether no live beam is expected to become a better answer than those found."""
        rule = self._rule
        if len(self.answers) < len(self.choices) or rule.early_stopping is True:
            return len(self.answers) == len(self.choices)
        reach = max_tokens if rule.early_stopping == "never" and rule.length_penalty > 0 else length
        return self._penalised(self._live[0].score, reach) <= self.answers[-1].score

    def _penalised(self, score: float, length: int) -> float:
        return score / math.pow(length, self._rule.length_penalty)
