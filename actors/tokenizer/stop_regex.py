"""Finds regular expressions in a stream of text, and holds back only what may still become a match.

The expressions are llguidance's: those of Rust's regex crate, without look-around and back-references. They are matched
by derivatives, so none takes exponential time. Every character at which a match may begin starts a candidate, a copy of
the expression's matcher, which is dropped when nothing that follows could complete it. The earliest match to be
completed ends the text; of several that end together, the one that begins first.

Bounds: a match has at most MAX_MATCH characters, and at most MAX_CANDIDATES are followed at a time; while there are so
many, no new one starts.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from llguidance import LLMatcher, LLTokenizer

from ...protocol.errors import ApiError

MAX_MATCH: Final = 256  # characters: that much text may be held back
MAX_CANDIDATES: Final = 16  # each costs 1 to 3 µs per byte of text, on the loop that serves all streams
_BYTES: Final = 256  # token ids below this are bytes; the others are the library's own


class RegexMatch(NamedTuple):
    """A match of the expression `stop`; it ends `end` characters into the text fed last and is `length` long."""

    stop: str
    end: int
    length: int


class StopPattern(NamedTuple):
    """An accepted expression; immutable, so choices share it."""

    source: str
    fresh: LLMatcher  # copied for every candidate
    first_bytes: frozenset[int]


class _Candidate(NamedTuple):
    begins: int  # in characters of the whole text
    pattern: StopPattern
    matcher: LLMatcher


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


@lru_cache(maxsize=64)  # requests with the same expressions, and the choices of one, share them
def stop_pattern(source: str) -> StopPattern:
    """Compile an expression, in 1 to 40 ms. Raises ApiError (400) if it is not one, or matches the empty text."""
    tokenizer = _byte_tokenizer()
    fresh = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(source), log_level=0)
    # At the very ends of an expression the library ignores `^` and `$`. In the middle it refuses them.
    inside = LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(f"(?s:.)(?:{source})(?s:.)"), tokenizer)
    if fresh.is_error() or inside:
        raise ApiError(
            "invalid_stop",
            f"stop_regex: {source!r} is not supported: {_reason(fresh.get_error() or inside)}.",
            param="stop_regex",
        )
    if fresh.is_accepting():
        raise ApiError("invalid_stop", f"stop_regex: {source!r} matches the empty text.", param="stop_regex")
    mask = fresh.compute_bitmask()
    first_bytes = frozenset(byte for byte in range(_BYTES) if mask[byte // 8] >> byte % 8 & 1)
    return StopPattern(source, fresh, first_bytes)


def _reason(error: str) -> str:
    if "lookarounds" in error:
        return "anchors, word boundaries and look-around cannot be used"
    return error.rpartition("error: ")[2].split("\n")[0]


class RegexScanner:
    """The state of one choice's search."""

    def __init__(self, sources: tuple[str, ...]) -> None:
        self._patterns = [stop_pattern(source) for source in sources]
        self._candidates: list[_Candidate] = []  # those that began first come first
        self._read = 0  # characters

    @property
    def held(self) -> int:
        """How many characters at the end of the text may become a match."""
        return self._read - self._candidates[0].begins if self._candidates else 0

    def scan(self, text: str) -> RegexMatch | None:
        """Read more text. After a match the search is over."""
        for end, character in enumerate(text, 1):
            spelt = list(character.encode())
            self._candidates = [
                candidate
                for candidate in (*self._candidates, *self._beginning(spelt[0]))
                if self._read - candidate.begins < MAX_MATCH
                and candidate.matcher.try_consume_tokens(spelt) == len(spelt)
            ]
            self._read += 1
            for begins, pattern, matcher in self._candidates:
                if matcher.is_accepting():
                    return RegexMatch(pattern.source, end, self._read - begins)
        return None

    def _beginning(self, first_byte: int) -> Iterator[_Candidate]:
        room = MAX_CANDIDATES - len(self._candidates)
        for pattern in self._patterns[: max(room, 0)]:
            if first_byte in pattern.first_bytes:
                yield _Candidate(self._read, pattern, pattern.fresh.deep_copy())
