import io

import trio
from msgspec import structs
from rich.console import Console
from trio.testing import MockClock

from triolet.loadtest.client.ending import Fault
from triolet.loadtest.serve.exchange import LoadExchange, LoadRequest
from triolet.loadtest.serve.lag import LagMeter
from triolet.loadtest.serve.live_view import LiveView
from triolet.loadtest.serve.runner import Runner
from triolet.loadtest.serve.workload import Workload

from .made import SETTINGS, ScriptedTransport, one_piece


def _text(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(view.render())
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


async def test_the_view_tells_what_the_run_is_doing(autojump_clock: MockClock) -> None:
    async def answer(number: int, _ask: LoadRequest, exchange: LoadExchange) -> None:
        await one_piece(exchange, 0.25)
        if number % 4 == 0:
            raise Fault("refused", "full", 429)

    settings = structs.replace(SETTINGS, concurrency=4, seconds=20.0, warmup_seconds=3.0, grace_seconds=1.0)
    runner, meter = Runner(settings, Workload(settings), ScriptedTransport(answer)), LagMeter()
    view = LiveView(settings, runner, meter)
    assert "0 in flight, 0 ended" in _text(view)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        nursery.start_soon(meter.watch)
        await trio.sleep(1.1)
        early = _text(view)
        assert "warming up" in early
        assert "4 in flight, 16 ended" in early
        await trio.sleep(5.0)
        text = _text(view)
        assert "measuring" in text
        assert "16 a second, 96 in all" in text
        assert "first token 250.0 ms, p99 250.0" in text
        assert "refused 24" in text
        autojump_clock.jump(1.0)
        await trio.sleep(0.1)
        assert "it is the bottleneck" in _text(view)
        await trio.sleep(30.0)
        assert "finishing" in _text(view)
        nursery.cancel_scope.cancel()
