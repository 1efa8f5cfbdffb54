"""Health from progress, and the restart budget."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.supervisor.restart_budget import ENOUGH_STEPS, PERIOD, RESTARTS, RestartBudget
from triolet.actors.supervisor.step_cost import StepCost
from triolet.actors.supervisor.worker_status import (
    KILL_AFTER,
    PING_INTERVAL,
    SILENCE_LIMIT,
    STALL_LIMIT,
    WorkerStatus,
)
from triolet.protocol.settings import HANG_SECONDS
from triolet.protocol.steps import Chunk, Ready, Step


@pytest.fixture
def status(make_ready: Callable[[], Ready]) -> WorkerStatus:
    status = WorkerStatus()
    status.begin(1, 99.0)
    status.set_ready(make_ready(), 100.0)
    return status


def step(number: int, tokens: int, start: int = 0) -> Step:
    return Step(step=number, chunks=(Chunk(sequence=1, start=start, count=tokens),))


def run(status: WorkerStatus, number: int, tokens: int, seconds: float, now: float) -> None:
    """A whole step that ends now."""
    status.step_sent(step(number, tokens), now - seconds)
    status.step_done(number, seconds, now)
    status.heard(now)


def test_not_ready_while_loading_and_the_reason_says_so() -> None:
    health = WorkerStatus().health(0.0)
    assert (health.ready, health.status) == (False, "loading")


def test_a_silent_worker_is_noticed_within_two_seconds(status: WorkerStatus) -> None:
    assert PING_INTERVAL + SILENCE_LIMIT <= 2.0
    assert status.health(100.0 + SILENCE_LIMIT).ready
    health = status.health(100.1 + SILENCE_LIMIT)
    assert (health.ready, health.status) == (False, "silent")
    assert "has not answered for 1.6 s" in health.reason
    status.heard(102.0)
    assert status.health(102.0).ready


def test_a_step_that_makes_no_progress_is_noticed_within_two_seconds_and_given_up(status: WorkerStatus) -> None:
    assert 2 * PING_INTERVAL + STALL_LIMIT <= 2.0  # the last progress may be a ping old, and so may its absence
    run(status, 1, tokens=64, seconds=0.1, now=100.1)
    status.step_sent(step(2, tokens=64), 200.0)
    status.heard(201.5, progress=7)  # it moves
    status.heard(201.5 + STALL_LIMIT, progress=7)  # it does not
    assert status.health(202.6).ready
    status.heard(202.6, progress=7)
    health = status.health(202.7)
    assert (health.ready, health.status) == (False, "stuck")
    assert "no progress for 1.1 s" in health.reason
    status.heard(201.5 + HANG_SECONDS, progress=7)
    assert status.must_be_killed(203.6) is None
    status.heard(203.6, progress=7)
    assert "no progress" in (status.must_be_killed(203.6) or "")
    status.step_done(2, 5.0, 206.0)
    status.heard(206.0)
    assert status.health(206.0).ready
    assert status.must_be_killed(206.0) is None


def test_a_worker_that_is_stopped_in_a_step_is_silent_and_does_not_hang(status: WorkerStatus) -> None:
    run(status, 1, tokens=64, seconds=0.1, now=100.1)
    status.step_sent(step(2, tokens=64), 200.0)
    status.heard(200.5, progress=7)
    assert status.health(210.0).status == "silent"
    assert status.must_be_killed(210.0) is None
    assert not status.hangs


def hangs(status: WorkerStatus, now: float) -> bool:
    """Whether it does if no progress comes until then."""
    status.heard(now, progress=0)
    return status.hangs


def test_a_step_that_is_long_by_its_size_is_no_illness(status: WorkerStatus) -> None:
    """Where the device does not tell how far it is: 64 tokens took 1 s, so 640 behind 2,048 may take 36 s."""
    run(status, 1, tokens=64, seconds=1.0, now=101.0)
    status.step_sent(step(2, tokens=640, start=2048), 200.0)
    for now in (210.0, 290.0, 308.0):
        status.heard(now, progress=0)
        assert status.health(now).ready
    status.heard(310.0, progress=0)
    assert status.health(310.0).status == "stuck"
    assert not hangs(status, 562.0)
    assert hangs(status, 563.0)


def test_a_long_step_that_has_told_of_its_progress_is_given_up_sooner(status: WorkerStatus) -> None:
    """Steps of 5 s, of which every pong brought news: after 10 s without any, and not after 50."""
    status.step_sent(step(1, tokens=64), 100.0)
    for half in range(1, 10):
        status.heard(100.0 + half / 2, progress=half)
    status.step_done(1, 5.0, 105.0)
    status.step_sent(step(2, tokens=64), 105.0)
    status.heard(108.9, progress=10)
    status.heard(111.8, progress=10)
    assert status.health(111.8).ready
    status.heard(112.0, progress=10)
    assert status.health(112.0).status == "stuck"
    status.heard(118.8, progress=10)
    assert not status.hangs
    status.heard(119.0, progress=10)
    assert status.hangs


def test_the_first_load_may_have_compiled(make_ready: Callable[[], Ready]) -> None:
    status = WorkerStatus()
    for began, ready in ((0.0, 60.0), (70.0, 71.0)):
        status.begin(1, began)
        status.set_ready(make_ready(), ready)
    run(status, 1, tokens=64, seconds=0.1, now=100.0)
    status.step_sent(step(2, tokens=64), 200.0)
    assert not hangs(status, 202.0)
    assert hangs(status, 202.1)


def test_a_worker_is_not_thrown_away_sooner_than_the_next_one_could_come(make_ready: Callable[[], Ready]) -> None:
    status = WorkerStatus()
    status.begin(1, 0.0)
    status.set_ready(make_ready(), 60.0)
    run(status, 1, tokens=64, seconds=0.1, now=100.0)
    status.step_sent(step(2, tokens=64), 200.0)
    assert not hangs(status, 259.0)
    assert hangs(status, 261.0)


def test_the_first_step_may_take_some_seconds(status: WorkerStatus) -> None:
    status.step_sent(step(1, tokens=1), 100.0)
    status.heard(108.0)
    assert status.health(108.0).ready
    assert not hangs(status, 129.0)
    assert hangs(status, 131.0)


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0.001, 10)), min_size=1), st.integers(1, 1 << 20))
def test_a_prediction_bounds_every_step_of_a_machine_with_constant_speed(
    steps: list[tuple[int, float]], work: int
) -> None:
    """Whose steps take a fixed time and one for each unit of work."""
    fixed, each = steps[0][1], steps[0][1] / 100
    cost = StepCost()
    assert cost.predict(work) is None
    for done, _ in steps:
        cost.note(done, fixed + each * done)
    predicted = cost.predict(work)
    assert predicted is not None
    assert predicted >= (fixed + each * work) * 0.999
    again = StepCost()
    again.note(work, fixed + each * work)
    assert (again.predict(work) or 0.0) <= 2 * (fixed + each * work)  # and it is of use


def test_a_slow_moment_is_forgotten() -> None:
    cost = StepCost()
    cost.note(4, 30.0)
    for _ in range(400):
        cost.note(4, 0.01)
    assert (cost.predict(4) or 1.0) < 0.02


def test_a_worker_that_never_answers_is_given_up(status: WorkerStatus) -> None:
    assert status.must_be_killed(100.0 + KILL_AFTER) is None
    assert "said nothing" in (status.must_be_killed(101.0 + KILL_AFTER) or "")


def test_a_lost_worker_forgets_its_steps(status: WorkerStatus, make_ready: Callable[[], Ready]) -> None:
    status.step_sent(step(1, tokens=1), 100.0)
    status.lose("restarting", "it was killed")
    assert status.health(100.0).reason == "it was killed"
    status.set_ready(make_ready(), 500.0)
    assert status.health(500.0).ready


def test_three_restarts_in_a_minute_and_no_fourth() -> None:
    budget = RestartBudget()
    taken = [budget.next_delay(float(second)) for second in range(RESTARTS)]
    delays = [delay for delay in taken if delay is not None]
    assert delays == taken
    assert delays == sorted(delays)  # each waits longer than the one before
    assert budget.next_delay(RESTARTS) is None
    assert budget.next_delay(PERIOD + 0.5) is not None  # the first was more than a minute ago
    assert budget.next_delay(PERIOD + 0.5) is None


def test_a_worker_that_has_computed_enough_is_always_replaced() -> None:
    budget = RestartBudget()
    assert all(budget.next_delay(0.0, ENOUGH_STEPS) is not None for _ in range(100))
    assert [budget.next_delay(0.0, ENOUGH_STEPS - 1) is None for _ in range(RESTARTS + 1)] == [False] * RESTARTS + [
        True
    ]


def test_workers_that_died_of_a_request_that_was_found_do_not_count() -> None:
    budget = RestartBudget()
    for culprit in range(1, 10):
        assert budget.next_delay(0.0) is not None
        assert budget.next_delay(0.0) is not None
        budget.excuse(2 * culprit)
        budget.excuse(2 * culprit)  # known already
    for _ in range(RESTARTS):
        assert budget.next_delay(0.0) is not None
    assert budget.next_delay(0.0) is None
