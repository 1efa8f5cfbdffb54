"""The cost of an idle server: CPU time and wake-ups after serving, with no client connected."""

import time
from typing import Final

from msgspec import Struct

from ..process import ServerProcess
from .rates import sse_rate
from .script import Script

SETTLE_SECONDS: Final = 1.0  # for pool threads to end and connections to close


class Idle(Struct, frozen=True, kw_only=True):
    """The server's own processes, without the worker. `wakeups_s`: how often one of its threads ran."""

    cpu_percent: float
    wakeups_s: float
    seconds: float


def idle_cost(server: ServerProcess, script: Script, seconds: float, streams: int) -> Idle:
    sse_rate(server, script, 0.2, streams)
    time.sleep(SETTLE_SECONDS)
    used, woken, began = server.cpu_time().server, server.wakeups(), time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - began
    return Idle(
        cpu_percent=(server.cpu_time().server - used) / passed * 100,
        wakeups_s=(server.wakeups() - woken) / passed,
        seconds=passed,
    )
