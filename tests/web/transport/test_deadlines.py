"""Deadlines of many from one task: each once, in time and in order; none while nothing is set."""

import math
from functools import partial

import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.web.timers import Deadlines


async def next_deadline() -> float:
    await wait_all_tasks_blocked()
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


async def test_each_is_called_once_after_its_time_unless_forgotten(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    called: list[tuple[str, float]] = []
    deadlines, began = Deadlines(10.0), trio.current_time()

    def call(name: str) -> None:
        called.append((name, trio.current_time() - began))

    deadlines.set("before the task", partial(call, "before the task"))
    nursery.start_soon(deadlines.run)
    await trio.sleep(3.0)
    for name in ("a", "forgotten", "again"):
        deadlines.set(name, partial(call, name))
    await trio.sleep(4.0)
    deadlines.forget("forgotten")
    deadlines.forget("unknown")
    deadlines.set("again", partial(call, "again"))
    await trio.sleep(50.0)
    assert called == [("before the task", 10.0), ("a", 13.0), ("again", 17.0)]


async def test_a_call_may_set_the_next(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    deadlines, times = Deadlines(1.0), list[float]()

    def call() -> None:
        times.append(trio.current_time())
        deadlines.set("same", call)

    nursery.start_soon(deadlines.run)
    deadlines.set("same", call)
    await trio.sleep(3.5)
    assert len(times) == 3


async def test_no_timer_runs_while_nothing_is_set(nursery: trio.Nursery) -> None:
    deadlines = Deadlines(3600.0)
    nursery.start_soon(deadlines.run)
    assert await next_deadline() == math.inf
    deadlines.set("one", lambda: None)
    deadlines.set("two", lambda: None)
    deadlines.forget("one")
    assert 3000.0 < await next_deadline() < math.inf
    deadlines.forget("two")
    assert await next_deadline() == math.inf
