"""Whether the load client is the bottleneck: how late its event loop runs, and how much CPU it uses.

A task wakes every 10 ms. Its lateness shows how late this program sees tokens and starts requests, whatever the server
does. If 1 % of the wake-ups are later than `MOST_LAG`, or the process uses nearly a whole core (its event loop is one
thread), the figures measure the client and not the server. The report then states this.
"""

import time
from array import array
from collections.abc import Callable
from typing import Final

import trio
from msgspec import Struct

from .quantiles import quantile

TICK: Final = 0.010
MOST_LAG: Final = 0.010  # for 99 % of the wake-ups
MOST_CPU: Final = 0.85  # of a core
STARVED_CPU: Final = 0.3  # of a core: a late client that used less was not given a whole core
MOST_LATE_START: Final = 0.020  # for 99 % of an open loop's requests, if none waited for --max-in-flight


class ClientLoad(Struct, frozen=True, kw_only=True):
    """The client's own state during the measured part of a run. Seconds."""

    lag_p50: float
    lag_p99: float
    lag_max: float
    cpu_share: float  # of one core
    cpu_seconds: float
    cpu_ms_per_1000_tokens: float | None
    late_start_p99: float | None  # open loop: delay after the intended start
    bottleneck: bool
    reasons: tuple[str, ...]


class LagMeter:
    """`watch` runs as a task beside the load. `samples` has one entry per tick, `cpu` one per second, with times."""

    def __init__(self, cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._cpu_clock = cpu_clock
        self.times = array("d")
        self.lags = array("d")
        self.cpu_times = array("d")
        self.cpu = array("d")

    async def watch(self) -> None:
        due = trio.current_time()
        self._take_cpu(due)
        while True:
            due += TICK
            await trio.sleep_until(due)
            now = trio.current_time()
            self.observe(due, now)
            while due + TICK <= now:  # a stall of one second makes a hundred wake-ups late, not one
                due += TICK
                self.observe(due, now)
            if now - self.cpu_times[-1] >= 1.0:
                self._take_cpu(now)

    def observe(self, due: float, now: float) -> None:
        self.times.append(now)
        self.lags.append(max(0.0, now - due))

    def _take_cpu(self, now: float) -> None:
        self.cpu_times.append(now)
        self.cpu.append(self._cpu_clock())

    def judge(
        self, begin: float, end: float, *, tokens: float, late_starts: list[float] | None, waited: int = 0
    ) -> ClientLoad:
        """The client's state from `begin` to `end` on trio's clock. `waited`: requests delayed by --max-in-flight."""
        self._take_cpu(trio.current_time())
        lags = sorted(lag for time, lag in zip(self.times, self.lags, strict=True) if begin <= time <= end) or [0.0]
        cpu_seconds = self._cpu_at(end) - self._cpu_at(begin)
        share = cpu_seconds / (end - begin) if end > begin else 0.0
        late = quantile(sorted(late_starts), 0.99) if late_starts else None
        lag = quantile(lags, 0.99)
        reasons: list[str] = []
        if lag > MOST_LAG:
            reasons.append(
                f"1 % of the client's wake-ups came {lag * 1000:.0f} ms late or more (at most {MOST_LAG * 1000:.0f} "
                "are allowed): latencies are too long by as much"
                + (
                    f", though it took only {share:.0%} of a core: others kept it waiting"
                    if share < STARVED_CPU
                    else ""
                )
            )
        if share > MOST_CPU:
            reasons.append(f"the client took {share:.0%} of a core, and its event loop has one")
        if late is not None and late > MOST_LATE_START and not waited:
            reasons.append(f"1 % of the requests started {late * 1000:.0f} ms late or more")
        if waited:
            reasons.append(f"{waited} requests waited in the client for a place (--max-in-flight)")
        return ClientLoad(
            lag_p50=quantile(lags, 0.5),
            lag_p99=lag,
            lag_max=lags[-1],
            cpu_share=share,
            cpu_seconds=cpu_seconds,
            cpu_ms_per_1000_tokens=cpu_seconds / tokens * 1e6 if tokens else None,
            late_start_p99=late,
            bottleneck=bool(reasons),
            reasons=tuple(reasons),
        )

    def _cpu_at(self, time: float) -> float:
        """CPU seconds used until `time`, interpolated between the two nearest samples."""
        before = 0
        for place, sampled in enumerate(self.cpu_times):
            if sampled <= time:
                before = place
        after = min(before + 1, len(self.cpu) - 1)
        span = self.cpu_times[after] - self.cpu_times[before]
        part = min(1.0, max(0.0, (time - self.cpu_times[before]) / span)) if span > 0 else 0.0
        return self.cpu[before] + part * (self.cpu[after] - self.cpu[before])
