"""Long jobs make way for everybody; what they return and raise comes out as from any function."""

import os
import sys
import threading
from functools import partial

import pytest

from triolet.models import idle_time
from triolet.models.idle_time import in_idle_time

STACK = 1 << 20


def test_results_and_errors_come_out() -> None:
    usual = threading.stack_size()
    assert in_idle_time(lambda: 5, stack=STACK) == 5
    with pytest.raises(KeyError):
        in_idle_time(partial(dict[str, int]().__getitem__, "a"), stack=STACK)
    assert threading.stack_size() == usual


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_a_long_job_gets_idle_time_and_the_next_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_idle() -> int:
        while os.sched_getscheduler(threading.get_native_id()) != os.SCHED_IDLE:
            pass
        return threading.get_native_id()

    assert in_idle_time(until_idle, stack=STACK) != threading.get_native_id()
    monkeypatch.setattr(idle_time, "AT_ONCE", 60.0)
    assert in_idle_time(lambda: os.sched_getscheduler(threading.get_native_id()), stack=STACK) == os.SCHED_OTHER
