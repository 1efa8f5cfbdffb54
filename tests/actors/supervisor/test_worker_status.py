"""Health from progress, and the restart budget."""

from collections.abc import Callable

import pytest

from triolet.actors.supervisor.restart_budget import PERIOD, RESTARTS, RestartBudget
from triolet.actors.supervisor.worker_status import KILL_AFTER, PING_INTERVAL, SILENCE_LIMIT, WorkerStatus
from triolet.protocol.steps import Ready


@pytest.fixture
def status(make_ready: Callable[[], Ready]) -> WorkerStatus:
    status = WorkerStatus()
    status.set_ready(make_ready(), 100.0)
    return status


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


def test_a_long_step_is_no_illness_but_one_far_beyond_all_others_is(status: WorkerStatus) -> None:
    status.step_sent(1, 100.0)
    status.step_sent(2, 100.1)
    status.step_done(1, 3.0, 103.0)
    status.heard(162.0)
    assert status.health(162.0).ready  # the second began at 103: 59 s, under twenty times the slowest
    status.heard(164.0)
    health = status.health(164.0)
    assert (health.ready, health.status) == (False, "stuck")
    assert status.must_be_killed(164.0) is None
    status.heard(800.0)
    assert "one step" in (status.must_be_killed(800.0) or "")
    status.step_done(2, 700.0, 800.0)
    assert status.health(800.0).ready
    assert status.must_be_killed(800.0) is None


def test_a_worker_that_never_answers_is_given_up(status: WorkerStatus) -> None:
    assert status.must_be_killed(100.0 + KILL_AFTER) is None
    assert "said nothing" in (status.must_be_killed(101.0 + KILL_AFTER) or "")


def test_a_lost_worker_forgets_its_steps(status: WorkerStatus, make_ready: Callable[[], Ready]) -> None:
    status.step_sent(1, 100.0)
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
