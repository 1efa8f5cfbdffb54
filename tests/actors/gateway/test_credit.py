"""Credit: bounded by the outbox, returned in halves, and the client's own grants on top."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.gateway.credit import CreditLine


def credit_line(size: int) -> tuple[CreditLine, list[int]]:
    """A line, and what it passes on."""
    passed_on: list[int] = []
    return CreditLine(size, passed_on.append), passed_on


def test_what_the_reader_takes_comes_back_in_halves() -> None:
    line, passed_on = credit_line(8)
    assert line.first == 8
    for taken in range(1, 9):
        line.take(1)
        assert passed_on == [4] * (taken // 4)


def test_the_clients_first_grant_ends_automatic_credit() -> None:
    line, passed_on = credit_line(8)
    line.take(4)
    line.grant(1)
    assert passed_on == [4]  # 12 with the first 8, and the outbox has room for no more
    line.take(4)
    line.take(4)
    assert passed_on == [4, 1]  # there is room for more, but the client granted one
    line.grant(2)
    assert passed_on == [4, 1, 2]


@given(
    size=st.integers(1, 20),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 10)), max_size=60),
)
def test_never_more_than_the_outbox_ahead_of_the_reader(size: int, moves: list[tuple[bool, int]]) -> None:
    line, later = credit_line(size)
    passed_on, taken = line.first, 0
    granted: int | None = None  # in all, what was passed on before the first grant included
    for is_grant, tokens in moves:
        if is_grant:
            granted = (passed_on if granted is None else granted) + tokens
            line.grant(tokens)
        elif step := min(tokens, passed_on - taken):  # a reader takes only what was generated
            taken += step
            line.take(step)
        passed_on = size + sum(later)
        assert all(later)
        assert passed_on - taken <= size
        if granted is not None:
            assert passed_on == min(granted, size + taken)
        else:
            assert passed_on - taken > size // 2 or size == 1
