"""Credit: bounded by the outbox, returned in halves, and the client's own grants on top."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.credit import CreditLine


def test_what_the_reader_takes_comes_back_in_halves() -> None:
    line = CreditLine(8)
    assert line.first == 8
    assert [line.take(1) for _ in range(8)] == [0, 0, 0, 4, 0, 0, 0, 4]


def test_the_clients_first_grant_ends_automatic_credit() -> None:
    line = CreditLine(8)
    assert line.take(4) == 4
    assert line.grant(1) == 0  # 12 were passed on already and the outbox has room for no more
    assert line.take(4) == 1  # room for 4 more, of which the client granted one
    assert line.take(4) == 0
    assert line.grant(2) == 2


@given(
    size=st.integers(1, 20),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 10)), max_size=60),
)
def test_never_more_than_the_outbox_ahead_of_the_reader(size: int, moves: list[tuple[bool, int]]) -> None:
    line = CreditLine(size)
    passed_on, taken = line.first, 0
    granted: int | None = None  # in all, what was passed on before the first grant included
    for is_grant, tokens in moves:
        if is_grant:
            granted = (passed_on if granted is None else granted) + tokens
            passed_on += line.grant(tokens)
        else:
            step = min(tokens, passed_on - taken)  # a reader takes only what was generated
            taken += step
            passed_on += line.take(step) if step else 0
        assert passed_on - taken <= size
        if granted is not None:
            assert passed_on == min(granted, size + taken)
        else:
            assert passed_on - taken > size // 2 or size == 1
