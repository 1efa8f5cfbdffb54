"""Finds stop strings in a stream, across pieces of text, and holds back as little text as possible.

An Aho-Corasick automaton over all stop strings reads each character once, whatever their number and length. Its depth
is the length of the longest suffix of the text that begins some stop string: exactly what must be held back. The first
match to be completed wins; of several that end together, the longest.
"""

from collections import deque
from functools import lru_cache
from typing import NamedTuple


class Match(NamedTuple):
    """A completed stop string, which ends `end` characters into the text fed last."""

    stop: str
    end: int

    @property
    def length(self) -> int:
        return len(self.stop)


class StopAutomaton:
    """The automaton of one set of stop strings; immutable after construction, so choices share it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string matches everywhere; it is refused at the edge"
        self.next: list[dict[str, int]] = [{}]
        self.fail: list[int] = [0]
        self.depth: list[int] = [0]
        self.found: list[str] = [""]  # the longest stop string that ends in this state
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self.next[state].get(character)
            if following is None:
                following = len(self.next)
                self.next[state][character] = following
                self.next.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append("")
            state = following
        self.found[state] = stop

    def _link(self) -> None:
        """Breadth first: a state falls back to the longest proper suffix of its text that begins a stop string."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            self.found[state] = self.found[state] or self.found[self.fail[state]]
            for character, following in self.next[state].items():
                fallback = self.fail[state]
                while fallback and character not in self.next[fallback]:
                    fallback = self.fail[fallback]
                self.fail[following] = self.next[fallback].get(character, 0)
                queue.append(following)


@lru_cache(maxsize=64)  # requests with the same stop strings, and the choices of one, share an automaton
def stop_automaton(stops: tuple[str, ...]) -> StopAutomaton:
    return StopAutomaton(stops)


class StopScanner:
    """The state of one choice's search."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._automaton = stop_automaton(stops)
        self._state = 0

    @property
    def held(self) -> int:
        """How many characters at the end of the text may become a stop string."""
        return self._automaton.depth[self._state]

    def scan(self, text: str) -> Match | None:
        """Read more text. After a match the search is over."""
        follow, fail, found = self._automaton.next, self._automaton.fail, self._automaton.found
        state = self._state
        for place, character in enumerate(text, 1):
            while (following := follow[state].get(character)) is None and state:
                state = fail[state]
            state = following or 0
            if found[state]:
                return Match(found[state], place)
        self._state = state
        return None
