"""Lines by key: whose turn it is, how many wait, and what is kept of them."""

from triolet.actors.turns import LinesByKey


def test_turns_and_counts_stay_right_when_items_are_dropped() -> None:
    lines = LinesByKey[int]()
    for tenant, item in [("a", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5)]:
        lines.add(tenant, item)
    assert (lines.next(), len(lines)) == (1, 4)
    lines.keep(lambda item: item != 3)
    assert len(lines) == 3
    assert [lines.next() for _ in range(3)] == [4, 2, 5]
    assert not lines
