"""Long jobs make way for everybody; what they return and raise comes out as from any function."""

import os
import queue
import sys
import threading
from functools import partial
from unittest.mock import Mock

import pytest

from triolet.models import low_priority
from triolet.models.low_priority import at_low_priority, run_beside

STACK = 1 << 20


def test_results_and_errors_come_out() -> None:
    assert at_low_priority(lambda: 5, stack=STACK) == 5
    with pytest.raises(KeyError):
        at_low_priority(partial(dict[str, int]().__getitem__, "a"), stack=STACK)


def test_one_job_at_a_time_sets_the_size_of_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the process's: of two jobs that start at once, the second would keep the first one's for its usual."""
    sizes: list[int] = []

    def set_size(size: int = 0) -> int:
        assert low_priority.STARTING.locked()
        sizes.append(size)
        return 1 << 16

    monkeypatch.setattr(threading, "stack_size", set_size)
    assert at_low_priority(lambda: 5, stack=STACK) == 5
    assert sizes == [STACK, 1 << 16]


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_a_long_job_gets_low_priority_and_the_next_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def until_low() -> int:
        while priority() != low_priority.NICENESS:
            pass
        return threading.get_native_id()

    assert at_low_priority(until_low, stack=STACK) != threading.get_native_id()
    monkeypatch.setattr(low_priority, "AT_ONCE", 60.0)
    assert at_low_priority(priority, stack=STACK) == usual


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
@pytest.mark.parametrize("forbidden", [False, True])
def test_what_nobody_waits_for_runs_at_a_low_priority(forbidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forbidden:
        monkeypatch.setattr(os, "setpriority", Mock(side_effect=PermissionError))
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    run_beside(lambda: found.put(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())), "test")
    assert found.get(timeout=60) == (usual if forbidden else low_priority.NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual
