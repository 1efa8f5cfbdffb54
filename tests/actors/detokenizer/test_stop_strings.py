"""The stop search against the naive definition: the earliest end wins, then the longest."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.detokenizer.stop_strings import Match, StopScanner

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4, unique=True)


def naive(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end, stop) of the first match to be completed."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@given(stops=STOPS, pieces=st.lists(st.text("abc", max_size=4), max_size=12))
def test_finds_what_the_definition_finds_and_holds_back_no_more_than_needed(
    stops: list[str], pieces: list[str]
) -> None:
    scanner = StopScanner(tuple(stops))
    read = ""
    for piece in pieces:
        expected = naive(read + piece, stops)
        match = scanner.scan(piece)
        if expected is None:
            assert match is None
        else:
            assert match == Match(expected[1], expected[0] - len(read))
            return
        read += piece
        longest = max(
            (n for stop in stops for n in range(len(stop)) if read.endswith(stop[:n])),
            default=0,
        )
        assert scanner.held == longest


def test_cost_is_linear_where_a_naive_search_is_quadratic() -> None:
    """A stop string that almost matches everywhere: 200,000 characters are read in one pass, none held for long."""
    scanner = StopScanner(("a" * 255 + "b",))
    for _ in range(200):
        assert scanner.scan("a" * 1000) is None
    assert scanner.held == 255
    assert scanner.scan("b") == Match("a" * 255 + "b", 1)
