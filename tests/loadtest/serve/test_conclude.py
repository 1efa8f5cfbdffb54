"""What a session concludes of its client: judged while it has its load, not while it waits for the last answer."""

from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from triolet.loadtest.serve.lag import LagMeter
from triolet.loadtest.serve.record import Record
from triolet.loadtest.serve.result import Conditions, Result
from triolet.loadtest.serve.runner import Progress
from triolet.loadtest.serve.session import CannotRun, conclude
from triolet.loadtest.serve.text_report import headline_rows
from triolet.loadtest.serve.words import TokensPerWord

from .made import SETTINGS, record

CONDITIONS = Conditions(
    name="made", date="2026-01-01", command="", model="m", server=None, versions={}, machine={}, words=TokensPerWord()
)


async def _concluded(
    busy: float, end: float, share: float, records: list[Record], issued: float, **ends: Any
) -> Result:
    """A client that takes `share` of a core for `busy` seconds, and waits from then to `end` with nothing to do."""
    meter, begun = LagMeter(lambda: busy * share), trio.current_time()
    for second in range(int(end)):
        meter.cpu_times.append(begun + second)
        meter.cpu.append(min(busy, second) * share)
    for tick in range(int(end * 10)):
        meter.observe(begun + tick / 10, begun + tick / 10)
    progress = Progress()
    progress.begun, progress.issuing_ended, progress.records = begun, begun + issued, records
    await trio.sleep(end)  # on the test's clock, which jumps
    return conclude(structs.replace(SETTINGS, **ends), progress, meter, CONDITIONS)


@pytest.mark.parametrize("ends", [{"seconds": 60.0}, {"seconds": None, "requests": 60}])
async def test_a_straggler_does_not_excuse_an_overloaded_client(
    autojump_clock: MockClock, ends: dict[str, Any]
) -> None:
    """95 % of a core over 60 s are 48 % over 120 s, of which the second half had nothing to do."""
    records = [record(intended=float(number), conversation=number) for number in range(60)]
    records.append(record(intended=59.0, ended=120.0, conversation=60))
    client = (await _concluded(60.0, 120.0, 0.95, records, issued=60.0, **ends)).client
    assert client.cpu_share == pytest.approx(0.95)
    assert client.reasons == ("the client took 95% of a core, and its event loop has one",)
    assert not (await _concluded(60.0, 120.0, 0.5, records, issued=60.0, **ends)).client.bottleneck


async def test_requests_that_start_all_at_once_are_judged_until_nine_of_ten_have_ended(
    autojump_clock: MockClock,
) -> None:
    records = [record(ended=10.0 if number < 9 else 100.0, conversation=number) for number in range(10)]
    result = await _concluded(10.0, 100.0, 0.9, records, issued=0.0, seconds=None, requests=10)
    assert result.client.cpu_share == pytest.approx(0.9)


async def test_a_server_too_busy_for_the_warm_up_is_reported_all_the_same(autojump_clock: MockClock) -> None:
    """Every client's first answer lasts longer than warm-up and run, so none asks again."""
    records = [record(phase="warm-up", intended=0.0, ended=45.0, conversation=number) for number in range(4)]
    result = await _concluded(1.0, 45.0, 0.1, records, issued=32.0, seconds=30.0, warmup_seconds=2.0)
    assert result.summary.requests == 4
    assert result.summary.latencies.e2e is not None
    assert (result.unwarmed, result.settings.warmup_seconds) == (2.0, 0.0)
    (note,) = [text for label, text in headline_rows(result) if label == "note"]
    assert "after the warm-up of 2 s" in note


async def test_a_load_that_sent_nothing_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(CannotRun, match="ended before its first request"):
        await _concluded(0.0, 1.0, 0.0, [], issued=0.0)
