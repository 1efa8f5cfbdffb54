"""The loops on a mock clock, with transports that say when a piece comes: every time in these tests is exact."""

from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from triolet.loadtest.client.ending import Fault
from triolet.loadtest.serve.arrivals import Constant, Ramp, Recorded
from triolet.loadtest.serve.exchange import LoadExchange, LoadRequest
from triolet.loadtest.serve.lengths import Fixed
from triolet.loadtest.serve.mix import Mix, MixShare
from triolet.loadtest.serve.record import Record, time_to_first_token, time_to_first_token_once_started
from triolet.loadtest.serve.runner import Runner
from triolet.loadtest.serve.session import measured_window
from triolet.loadtest.serve.settings import LoadSettings
from triolet.loadtest.serve.workload import Workload

from .made import SETTINGS, ScriptedTransport, one_piece


async def _run(transport: ScriptedTransport, **changes: Any) -> tuple[list[Record], Runner]:
    settings: LoadSettings = structs.replace(SETTINGS, **changes)
    runner = Runner(settings, Workload(settings), transport, model="m", recorded_times=[0.0, 0.5, 4.0])
    await runner.run()
    return runner.progress.records, runner


async def _after_a_second(_number: int, _ask: LoadRequest, exchange: LoadExchange) -> None:
    await one_piece(exchange, 1.0)


async def test_a_closed_loop_has_so_many_clients_and_ends_by_its_clock(autojump_clock: MockClock) -> None:
    transport = ScriptedTransport(_after_a_second)
    records, runner = await _run(transport, concurrency=3, seconds=4.5, warmup_seconds=2.0)
    assert transport.most == 3
    # Three ask at 0, 1, … 6: what began before 6.5 s is finished.
    assert [record.intended for record in records] == pytest.approx(
        [float(second) for second in range(7) for _ in "123"]
    )
    assert [record.phase for record in records].count("warm-up") == 6
    assert {record.outcome for record in records} == {"ok"}
    window = measured_window(structs.replace(SETTINGS, warmup_seconds=2.0), runner.progress)
    assert tuple(window) == pytest.approx((2.0, 6.5))


async def test_a_count_ends_the_loop_after_so_many_measured_requests(autojump_clock: MockClock) -> None:
    for loop in ({"concurrency": 4}, {"arrivals": Constant(10.0)}):
        records, runner = await _run(
            ScriptedTransport(_after_a_second), seconds=None, requests=10, warmup_seconds=1.5, **loop
        )
        assert sum(record.phase == "measured" for record in records) == 10
        assert {record.outcome for record in records} == {"ok"}
        window = measured_window(structs.replace(SETTINGS, requests=10, warmup_seconds=1.5), runner.progress)
        assert window.end == pytest.approx(max(record.ended for record in records))


async def test_an_open_loop_starts_requests_whatever_became_of_the_others(autojump_clock: MockClock) -> None:
    transport = ScriptedTransport(_after_a_second)
    records, _ = await _run(transport, arrivals=Constant(10.0), seconds=2.0)
    assert len(records) == 20
    assert transport.most == 10
    assert sorted(record.intended for record in records) == pytest.approx([number / 10 for number in range(20)])


class Stalling:
    """A server that does one request at a time, in 100 ms, and once does nothing for ten seconds."""

    def __init__(self) -> None:
        self._one = trio.Lock()

    async def __call__(self, number: int, ask: LoadRequest, exchange: LoadExchange) -> None:
        async with self._one:
            await one_piece(exchange, 10.0 if number == 10 else 0.1)


async def test_an_open_loop_does_not_let_a_stall_hide_requests(autojump_clock: MockClock) -> None:
    """Coordinated omission: one client in a closed loop sees one bad request, those in an open loop all met it."""
    closed, _ = await _run(ScriptedTransport(Stalling()), concurrency=1, seconds=20.0)
    opened, _ = await _run(ScriptedTransport(Stalling()), arrivals=Constant(5.0), seconds=20.0)

    def bad(records: list[Record]) -> int:
        return sum((time_to_first_token(record) or 0.0) > 1.0 for record in records)

    assert bad(closed) == 1
    assert bad(opened) > 40  # 5 a second came during the stall, and as many again while the queue got shorter


async def test_a_wait_for_a_place_is_in_the_latency(autojump_clock: MockClock) -> None:
    records, runner = await _run(
        ScriptedTransport(_after_a_second), arrivals=Constant(2.0), seconds=3.0, max_in_flight=1
    )
    last = records[-1]
    assert time_to_first_token_once_started(last) == pytest.approx(1.0)
    assert time_to_first_token(last) == pytest.approx(1.0 + 5 * 0.5)
    assert runner.progress.waited == 5


async def test_waiting_in_the_warm_up_is_no_reproach(autojump_clock: MockClock) -> None:
    """Two clients too many fill the server at the start; once it is measured, each has its place."""

    async def slow_start(_number: int, _ask: LoadRequest, exchange: LoadExchange) -> None:
        await one_piece(exchange, 3.0 if exchange.intended - begun < 1.0 else 0.1)

    begun = trio.current_time()
    records, runner = await _run(
        ScriptedTransport(slow_start), arrivals=Constant(1.0), seconds=4.0, warmup_seconds=9.0, max_in_flight=1
    )
    assert any(record.started > record.intended for record in records if record.phase == "warm-up")
    assert runner.progress.waited == 0


async def test_ramps_and_traces_end_by_themselves(autojump_clock: MockClock) -> None:
    records, runner = await _run(ScriptedTransport(_after_a_second), arrivals=Recorded("x"), seconds=None)
    assert [record.intended for record in records] == pytest.approx([0.0, 0.5, 4.0])
    records, runner = await _run(ScriptedTransport(_after_a_second), arrivals=Ramp(0.0, 10.0, 4.0), seconds=None)
    assert runner.progress.issuing_ended is not None
    assert runner.progress.issuing_ended - runner.origin == pytest.approx(4.0)
    assert max(record.intended for record in records) < 4.0


async def test_what_runs_when_the_grace_ends_is_unfinished(autojump_clock: MockClock) -> None:
    async def never(_number: int, _ask: LoadRequest, exchange: LoadExchange) -> None:
        await one_piece(exchange, 0.1)
        await trio.sleep_forever()

    records, _ = await _run(ScriptedTransport(never), concurrency=2, seconds=1.0, grace_seconds=3.0)
    assert [record.outcome for record in records] == ["unfinished"] * 2
    assert records[0].ended == pytest.approx(4.0)


async def test_a_stalled_and_a_late_answer_are_told_apart(autojump_clock: MockClock) -> None:
    async def stall_or_silence(number: int, _ask: LoadRequest, exchange: LoadExchange) -> None:
        if number == 0:
            await one_piece(exchange, 1.0)
        await trio.sleep_forever()

    records, _ = await _run(
        ScriptedTransport(stall_or_silence), concurrency=2, requests=2, seconds=None, stall_seconds=5.0,
        timeout_seconds=20.0,
    )  # fmt: skip
    assert [record.outcome for record in records] == ["stalled", "timeout"]
    assert records[0].ended == pytest.approx(6.0, abs=0.3)  # it looks four times a second
    assert records[1].ended == pytest.approx(20.0)


async def test_turns_carry_what_was_said_and_wait_to_think(autojump_clock: MockClock) -> None:
    async def echo(number: int, ask: LoadRequest, exchange: LoadExchange) -> None:
        exchange.texts.append(f"answer{number}")
        await one_piece(exchange, 1.0)

    transport = ScriptedTransport(echo)
    records, _ = await _run(transport, concurrency=1, requests=3, seconds=None, turns=Fixed(3), think_seconds=Fixed(5))
    assert [(record.conversation, record.turn) for record in records] == [(0, 0), (0, 1), (0, 2)]
    assert [record.intended for record in records] == pytest.approx([0.0, 6.0, 12.0])
    assert [ask.keep_text for ask in transport.asks] == [True, True, False]
    assert transport.asks[2].body.count(b"answer") == 2
    assert transport.asks[2].body.count(b'"user"') == 3


async def test_a_conversation_ends_with_its_first_failure(autojump_clock: MockClock) -> None:
    async def fail(_number: int, _ask: LoadRequest, exchange: LoadExchange) -> None:
        await trio.sleep(1.0)
        raise Fault("refused", "full", 429)

    records, _ = await _run(ScriptedTransport(fail), concurrency=1, seconds=3.5, turns=Fixed(3), think_seconds=Fixed(5))
    assert {(record.turn, record.outcome, record.status, record.detail) for record in records} == {
        (0, "refused", 429, "full")
    }


async def test_behaviours_reach_the_transport(autojump_clock: MockClock) -> None:
    transport = ScriptedTransport(_after_a_second)
    await _run(transport, concurrency=4, seconds=50.0, mix=Mix(cancel=MixShare(0.5, 7), slow=MixShare(0.5, 3)))
    told = {(ask.cancel_after, ask.pieces_per_second) for ask in transport.asks}
    assert told == {(7, None), (None, 3)}


async def test_stopping_early_keeps_what_was_measured(autojump_clock: MockClock) -> None:
    settings = structs.replace(SETTINGS, concurrency=2, seconds=100.0)
    runner = Runner(settings, Workload(settings), ScriptedTransport(_after_a_second))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        await trio.sleep(2.5)
        runner.stop(at_once=True)
    assert [record.outcome for record in runner.progress.records] == ["ok"] * 4 + ["cancelled"] * 2
