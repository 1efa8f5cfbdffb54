"""Regular expressions that stop: against Python's own, whatever the pieces of text, and what is not an expression."""

import random
import re

import pytest

from triolet.actors.tokenizer.stop_regex import MAX_CANDIDATES, MAX_MATCH, RegexScanner, stop_pattern
from triolet.protocol.errors import ApiError

PATTERNS = (r"a+b", r"ab*c|b+d", r"[ab]{2,3}é", r"c[^d]*d", r"(a|bc)+d", r"(a+)+c")


def naive(patterns: tuple[str, ...], text: str) -> tuple[int, int] | None:
    """Where the first match to be completed ends, and the length of the longest that ends there."""
    for end in range(1, len(text) + 1):
        for begin in range(end):
            if any(re.fullmatch(pattern, text[begin:end], re.DOTALL) for pattern in patterns):
                return end, end - begin
    return None


def scan(scanner: RegexScanner, pieces: list[str]) -> tuple[int, int] | None:
    read = 0
    for piece in pieces:
        match = scanner.scan(piece)
        if match is not None:
            return read + match.end, match.length
        read += len(piece)
    return None


def test_the_first_match_is_that_of_the_naive_search_however_the_text_arrives() -> None:
    rng = random.Random(1)
    for _ in range(1500):
        patterns = tuple(rng.sample(PATTERNS, 2))
        text = "".join(rng.choices("abcdé", k=rng.randint(0, 14)))
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert scan(RegexScanner(patterns), pieces) == naive(patterns, text), (patterns, text)


def test_what_may_become_a_match_is_held_and_nothing_else() -> None:
    scanner = RegexScanner((r"<end +of text>",))
    held = [scanner.held for character in "a <e<end of  te" if scanner.scan(character) is None]
    assert held == [0, 0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0]
    scanner = RegexScanner((r"<end +of text>",))
    assert scanner.scan("a <e<end   of te") is None
    assert scanner.held == len("<end   of te")


def test_a_match_and_the_work_for_it_are_bounded() -> None:
    scanner = RegexScanner((r"[^.]*Q",))
    for _ in range(3):
        assert scanner.scan("x" * MAX_MATCH) is None
        assert scanner.held <= MAX_MATCH
        assert len(scanner._candidates) <= MAX_CANDIDATES
    match = scanner.scan("Q")
    assert match is not None
    assert match.length <= MAX_MATCH


@pytest.mark.parametrize("source", ["(", r"(a)\1", "(?=x)", r"\bfoo", "^a", "a$", "a|^b", "a)(?:b", "", "x*"])
def test_what_cannot_be_used_is_refused_in_words(source: str) -> None:
    with pytest.raises(ApiError, match=r"^stop_regex: .* (is not supported: .+|matches the empty text)\.$") as caught:
        stop_pattern(source)
    assert (caught.value.code, caught.value.param) == ("invalid_stop", "stop_regex")
