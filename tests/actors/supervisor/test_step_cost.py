"""What steps usually take: never too much of sizes that were not seen, and never less for more work."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.supervisor.step_cost import TypicalCost

STEPS = st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-4, 1.0)), max_size=30)


def learned(steps: list[tuple[int, float]]) -> TypicalCost:
    cost = TypicalCost()
    for work, seconds in steps:
        cost.note(work, seconds)
    return cost


def test_nothing_is_known_before_the_first_step() -> None:
    assert TypicalCost().seconds(1e9) == 0
    assert TypicalCost().work_within(0.01) == inf


def test_between_known_sizes_is_a_line_and_beyond_them_nothing_is_guessed() -> None:
    cost = learned([(1, 0.002), (512, 0.020)])
    assert cost.seconds(0.5) == 0.001
    assert cost.seconds(1) == 0.002
    assert round(cost.seconds(256.5), 6) == 0.011
    assert cost.seconds(5000) == 0.020
    assert round(cost.work_within(0.011), 6) == 256.5
    assert cost.work_within(0.021) == inf


def test_one_slow_moment_is_not_believed() -> None:
    cost = learned([*[(512, 0.02)] * 10, (512, 60.0)])
    assert cost.seconds(512) < 0.03


def test_a_slow_step_of_a_rare_size_says_nothing_of_larger_ones() -> None:
    cost = learned([*[(512, 0.05)] * 3, (5, 3.0)])
    assert cost.seconds(512) == 0.05
    assert cost.seconds(5) <= 0.05


def test_what_was_slow_once_is_soon_forgotten() -> None:
    cost = learned([(400, 3.0), *[(400, 0.05)] * 8])
    assert cost.seconds(400) < 0.07


@given(STEPS, st.floats(0, 1e4), st.floats(0, 1e4))
def test_more_work_takes_no_less(steps: list[tuple[int, float]], one: float, other: float) -> None:
    cost = learned(steps)
    assert cost.seconds(min(one, other)) <= cost.seconds(max(one, other)) + 1e-9


@given(STEPS, st.floats(1e-4, 1.0))
def test_the_most_work_in_a_time_takes_that_time(steps: list[tuple[int, float]], seconds: float) -> None:
    cost = learned(steps)
    work = cost.work_within(seconds)
    assert cost.seconds(work if work < inf else 1e12) <= seconds + 1e-9
