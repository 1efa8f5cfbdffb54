"""The client's own overload, planted: the mock clock jumps while a task holds the loop, as time does in a busy one."""

import pytest
import trio
from trio.testing import MockClock

from triolet.loadtest.serve.lag import MOST_LAG, TICK, LagMeter


class Cpu:
    """A process's CPU clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def _watch(clock: MockClock, block: float, every: float, cpu: Cpu) -> LagMeter:
    """Ten seconds in which a task holds the event loop for `block` of every `every` seconds."""
    meter = LagMeter(cpu)

    async def busy() -> None:
        while True:
            await trio.sleep(every - block)
            clock.jump(block)
            cpu.seconds += block

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meter.watch)
            nursery.start_soon(busy)
    return meter


async def test_a_loop_that_is_held_up_is_its_own_bottleneck(autojump_clock: MockClock) -> None:
    begin, cpu = trio.current_time(), Cpu()
    meter = await _watch(autojump_clock, block=0.08, every=1.0, cpu=cpu)
    load = meter.judge(begin, begin + 10, tokens=1000.0, late_starts=None)
    assert load.bottleneck
    assert "wake-ups" in load.reasons[0]
    # Of a hundred wake-ups a second eight fall into the block: the first is as late as the block is long.
    assert load.lag_max == pytest.approx(0.08, abs=TICK)
    assert load.lag_p99 > MOST_LAG
    assert load.lag_p50 == pytest.approx(0.0, abs=1e-9)


async def test_a_loop_that_keeps_up_is_not(autojump_clock: MockClock) -> None:
    begin, cpu = trio.current_time(), Cpu()
    meter = await _watch(autojump_clock, block=0.004, every=0.1, cpu=cpu)
    load = meter.judge(begin, begin + 10, tokens=1000.0, late_starts=[0.0, 0.001])
    assert (load.bottleneck, load.reasons) == (False, ())
    assert load.cpu_share == pytest.approx(0.04, rel=0.05)
    assert load.cpu_ms_per_1000_tokens == pytest.approx(400, rel=0.05)


async def test_a_long_block_counts_for_all_the_time_it_took(autojump_clock: MockClock) -> None:
    """One block of half a second in ten: a twentieth of what the server sent was seen late, not one in a thousand."""
    begin, cpu = trio.current_time(), Cpu()
    meter = await _watch(autojump_clock, block=0.5, every=9.0, cpu=cpu)
    load = meter.judge(begin, begin + 10, tokens=1.0, late_starts=None)
    late = sum(lag > MOST_LAG for lag in meter.lags)
    assert late == pytest.approx(0.5 / TICK, abs=2)
    assert load.bottleneck


async def test_a_client_that_is_kept_from_running_says_whose_fault_it_is(autojump_clock: MockClock) -> None:
    begin, cpu = trio.current_time(), Cpu()
    meter = await _watch(autojump_clock, block=0.08, every=1.0, cpu=cpu)
    (starved,) = meter.judge(begin, begin + 10, tokens=1.0, late_starts=None).reasons
    assert starved.endswith("though it took only 8% of a core: others kept it waiting")
    meter = await _watch(autojump_clock, block=0.08, every=0.1, cpu=cpu)
    busy = meter.judge(begin + 10, begin + 20, tokens=1.0, late_starts=None).reasons[0]
    assert "others" not in busy


async def test_a_full_core_is_a_bottleneck_even_where_wake_ups_are_in_time(autojump_clock: MockClock) -> None:
    begin, cpu = trio.current_time(), Cpu()
    meter = await _watch(autojump_clock, block=0.009, every=0.01, cpu=cpu)
    load = meter.judge(begin, begin + 10, tokens=1.0, late_starts=None)
    assert load.reasons == ("the client took 90% of a core, and its event loop has one",)


async def test_late_starts_and_waiting_are_told(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    meter = await _watch(autojump_clock, block=0.001, every=1.0, cpu=Cpu())
    load = meter.judge(begin, begin + 10, tokens=0.0, late_starts=[0.05] * 10)
    assert load.reasons == ("1 % of the requests started 50 ms late or more",)
    assert load.late_start_p99 == 0.05
    load = meter.judge(begin, begin + 10, tokens=0.0, late_starts=[0.05] * 10, waited=3)
    assert load.reasons == ("3 requests waited in the client for a place (--max-in-flight)",)
    assert load.cpu_ms_per_1000_tokens is None
