"""Records, results and transports that tests make up: every value is stated, none is measured."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import trio

from triolet.loadtest.serve.exchange import LoadExchange, LoadRequest
from triolet.loadtest.serve.lag import ClientLoad
from triolet.loadtest.serve.record import Record
from triolet.loadtest.serve.result import Conditions, Result, Series, make_result
from triolet.loadtest.serve.settings import LoadSettings
from triolet.loadtest.serve.statistics import Window
from triolet.loadtest.serve.words import TokensPerWord

SETTINGS = LoadSettings(url="http://127.0.0.1:1", warmup_seconds=0.0, seconds=10.0)


def record(intended: float = 0.0, first: float = 0.1, gap: float = 0.01, pieces: int = 5, **changes: Any) -> Record:
    """A whole answer of `pieces` tokens: the first after `first` seconds, then one every `gap`."""
    arrivals = [intended + first + gap * place for place in range(pieces)]
    values: dict[str, Any] = {
        "conversation": 0, "turn": 0, "phase": "measured", "tenant": "default", "priority": None,
        "behaviour": "ordinary", "intended": intended, "started": intended, "sent": intended, "head": intended,
        "arrivals": arrivals, "counts": None, "ended": arrivals[-1] if arrivals else intended + first,
        "prompt_tokens_asked": 10, "output_tokens_asked": pieces, "prompt_tokens": 10, "cached_tokens": None,
        "output_tokens": pieces, "output_tokens_told": True, "reused": False, "outcome": "ok", "status": 200,
        "finish": "length", "detail": "",
    }  # fmt: skip
    return Record(**{**values, **changes})


def run_of(count: int, seed: int, slower: float = 1.0, name: str = "made", **settings: Any) -> Result:
    """A run of `count` requests with noisy times; `slower` multiplies every one of them."""
    draw = Random(f"run {seed}")
    records = [
        record(
            intended=number * 0.05,
            first=0.1 * draw.lognormvariate(0, 0.15) * slower,
            gap=0.01 * draw.lognormvariate(0, 0.15) * slower,
            pieces=20,
            conversation=number,
        )
        for number in range(count)
    ]
    return result_of(records, name=name, end=count * 0.05 + 0.5, **settings)


def result_of(records: Sequence[Record], name: str = "made", end: float = 10.0, **settings: Any) -> Result:
    client = ClientLoad(
        lag_p50=0.0005, lag_p99=0.001, lag_max=0.002, cpu_share=0.1, cpu_seconds=1.0, cpu_ms_per_1000_tokens=10.0,
        late_start_p99=None, bottleneck=False, reasons=(),
    )  # fmt: skip
    series = Series(step=end, tokens_per_second=[1.0, 2.0], in_flight=[1, 2], failures=[0, 1], lag=[0.0, 0.001])
    conditions = Conditions(
        name=name, date="2026-01-01", command="triolet bench serve", model="a <model>", server=None, versions={},
        machine={}, words=TokensPerWord(),
    )  # fmt: skip
    changed = LoadSettings(**{**{field: getattr(SETTINGS, field) for field in SETTINGS.__struct_fields__}, **settings})
    return make_result(records, Window(0.0, end), client, series, changed, conditions)


class ScriptedTransport:
    """Answers by a function of the exchange's number: it may sleep on the test's clock, add arrivals, raise."""

    def __init__(self, answer: Callable[[int, LoadRequest, LoadExchange], Any]) -> None:
        self._answer = answer
        self.asks: list[LoadRequest] = []
        self.running = 0
        self.most = 0

    async def perform(self, ask: LoadRequest, exchange: LoadExchange) -> None:
        number = len(self.asks)
        self.asks.append(ask)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._answer(number, ask, exchange)
        finally:
            self.running -= 1

    async def close(self) -> None:
        pass


async def one_piece(exchange: LoadExchange, after: float) -> None:
    await trio.sleep(after)
    exchange.arrivals.append(trio.current_time())
    exchange.output_tokens = 1
