"""Measuring begins when the worker's memory has stopped growing, not at the first poll without growth."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio.testing

from triolet.loadtest.compare import round as comparing
from triolet.protocol.steps import LoadProgress

MIB = 1 << 20


async def test_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> None:
    sizes = iter([100 * MIB, 100 * MIB, 140 * MIB, 180 * MIB, 180 * MIB, 180 * MIB])
    asked: list[int] = []

    def resident_bytes(pid: int) -> int:
        asked.append(pid)
        return next(sizes)

    monkeypatch.setattr(comparing, "resident_bytes", resident_bytes)
    engine: Any = SimpleNamespace(ready=SimpleNamespace(pid=7))  # Any: all that is read of an engine
    reported: list[LoadProgress] = []
    began = trio.current_time()
    await comparing.take_memory(engine, reported.append)
    assert asked == [7] * 6
    assert trio.current_time() - began == 5 * comparing.POLL_SECONDS
    assert [progress.done for progress in reported] == [0] * 5 + [1]
