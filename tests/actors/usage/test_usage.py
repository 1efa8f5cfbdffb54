"""Usage records on their way to the table: each once, whatever the disk does, and nobody waits for it."""

import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from triolet.actors.database import Database
from triolet.actors.gateway.history import History
from triolet.actors.usage import hours, table, usage
from triolet.actors.usage.table import UsageQuery
from triolet.actors.usage.usage import UsageRecords, days_kept
from triolet.protocol.events import Usage
from triolet.protocol.settings import EngineSettings, ServeSettings
from triolet.protocol.usage import UsageRecord, UsageTotal

NOW = 1_800_000_000.0  # Unix time
EVERYTHING = UsageQuery(None, 0, NOW * 2)
Made = Callable[..., UsageRecords]


def ended(id: str, **changes: Any) -> History:
    """A request that ended one second after its arrival."""
    fields: dict[str, Any] = {
        "id": id,
        "name": f"name of {id}",
        "tenant": "",
        "traceparent": "",
        "operation": "chat",
        "model": "tiny",
        "choices": 1,
        "max_tokens": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2),
        "wall_clock": NOW,
        "arrival": 100.0,
        "tokenized": 100.0,
        "started": 100.25,
        "first_token": 100.5,
        "finished": 101.0,
        "reason": "stop",
    }
    return History(**(fields | changes))


def rows(file: Path, wanted: UsageQuery = EVERYTHING) -> list[UsageRecord]:
    with closing(sqlite3.connect(file)) as connection:
        found = table.records(connection, wanted, 10**6).data
    return [row for row in found if isinstance(row, UsageRecord)]


@asynccontextmanager
async def writing(file: Path, days: int = 10_000, pages: int | None = None) -> AsyncGenerator[UsageRecords]:
    """Records on their way to `file` for the length of a block, and at its end. The disk has room for so many pages."""
    schema = table.SCHEMA if pages is None else f"{table.SCHEMA} PRAGMA max_page_count = {pages};"
    records = UsageRecords(Database(file, schema), days)
    with trio.CancelScope() as server:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(records.run)
                try:
                    yield records
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            server.cancel()  # the end comes while all else is cancelled
            await records.end()


async def until(condition: Callable[[], bool]) -> None:
    """A thread writes to the disk, which gives no event; the limit is far above anything a busy machine needs."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - as said
            await trio.sleep(0.01)


async def test_a_record_says_what_is_known_of_its_request(tmp_path: Path) -> None:
    async with writing(tmp_path / "usage.sqlite") as records:
        records.note(ended("a", tenant="alice", adapter="legal"))
        failed = {"reason": "error", "error": "context_length_exceeded", "started": None, "first_token": None}
        records.note(ended("b", **failed, finished=102.0))
    second, first = rows(tmp_path / "usage.sqlite")
    assert first == UsageRecord(
        id="a",
        request_id="name of a",
        key_digest="alice",
        model="tiny",
        adapter="legal",
        prompt_tokens=5,
        completion_tokens=3,
        cached_tokens=2,
        arrived=NOW + 100,
        ended=NOW + 101,
        queue_seconds=0.25,
        first_token_seconds=0.5,
        finish_reason="stop",
        error=None,
        total_seconds=1.0,
    )
    times = second.queue_seconds, second.first_token_seconds, second.total_seconds
    assert (*times, second.finish_reason, second.error) == (None, None, 2.0, "error", "context_length_exceeded")


async def test_records_are_written_while_the_server_runs(tmp_path: Path) -> None:
    async with writing(tmp_path / "usage.sqlite") as records:
        for number in range(2 * usage.MAX_GROUP + 1):
            records.note(ended(str(number)))
        await until(lambda: records.counts["written"] == 2 * usage.MAX_GROUP + 1)
        assert len(rows(tmp_path / "usage.sqlite")) == 2 * usage.MAX_GROUP + 1


@pytest.mark.parametrize("written", [0, 1])
async def test_the_end_writes_what_is_left(tmp_path: Path, written: int) -> None:
    """The task that writes has not begun, or waits for its next group; all others are cancelled."""
    async with writing(tmp_path / "usage.sqlite") as records:
        if written:
            records.note(ended("before"))
            await until(lambda: records.counts["written"] == 1)
        for number in range(5):
            records.note(ended(str(number)))
    assert records.counts == {"written": written + 5, "lost": 0}
    assert len(rows(tmp_path / "usage.sqlite")) == written + 5


async def test_a_stop_in_the_middle_of_a_transaction_neither_loses_nor_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, puts = table.put, 0

    def be_stopped(connection: sqlite3.Connection, *group: Any) -> int:
        nonlocal puts
        puts += 1
        trio.from_thread.run_sync(server.cancel)
        return put(connection, *group)

    monkeypatch.setattr(table, "put", be_stopped)
    records = UsageRecords(Database(tmp_path / "usage.sqlite", table.SCHEMA), 10_000)
    with trio.CancelScope() as server:
        records.note(ended("a"))
        await records.run()
    await records.end()
    assert (puts, records.counts) == (1, {"written": 1, "lost": 0})
    assert [row.id for row in rows(tmp_path / "usage.sqlite")] == ["a"]


async def test_two_processes_write_at_once(tmp_path: Path) -> None:
    file = tmp_path / "usage.sqlite"
    async with writing(file) as one, writing(file) as other:
        for number in range(300):
            one.note(ended(f"one-{number}"))
            other.note(ended(f"other-{number}"))
            await trio.sleep(0.002)
    assert len(rows(file)) == 600
    assert one.counts == other.counts == {"written": 300, "lost": 0}


async def test_a_disk_that_is_full_loses_no_record_that_it_has_room_for_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "RETRY_SECONDS", 0.0)
    async with writing(tmp_path / "usage.sqlite", pages=20) as records:
        for number in range(usage.MAX_GROUP):  # 20 pages have no room for a group
            records.note(ended(str(number)))
        await until(lambda: bool(caplog.records))
        assert "database or disk is full; up to 16384 wait, and others are lost" in caplog.text
        assert records.counts == {"written": 0, "lost": 0}
        await records._database.run(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))
        await until(lambda: records.counts["written"] == usage.MAX_GROUP)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]  # once each
    assert len(rows(tmp_path / "usage.sqlite")) == usage.MAX_GROUP


async def test_what_the_disk_never_takes_is_counted_and_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_WAITING", 10)
    (tmp_path / "file").write_text("no folder")
    async with writing(tmp_path / "file" / "usage.sqlite") as records:
        for number in range(12):
            records.note(ended(str(number)))
        await until(lambda: bool(caplog.records))
        records.note(ended("late"))
        assert records.counts == {"written": 0, "lost": 3}
    assert records.counts == {"written": 0, "lost": 13}
    assert [record.getMessage() for record in caplog.records][1:] == ["13 usage records were not written"]


async def test_a_group_whose_transaction_failed_after_its_end_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the answer to COMMIT were lost: what is there must stay there once."""
    put, tries = table.put, 0

    def lose_the_answer(connection: sqlite3.Connection, *group: Any) -> int:
        nonlocal tries
        tries += 1
        new = put(connection, *group)
        if tries == 1:
            connection.execute("COMMIT")
            raise sqlite3.OperationalError("disk I/O error")
        return new

    monkeypatch.setattr(table, "put", lose_the_answer)
    async with writing(tmp_path / "usage.sqlite") as records:
        records.note(ended("a"))
        records.note(ended("b"))
        await until(lambda: tries == 1)
    assert tries == 2
    assert records.counts == {"written": 0, "lost": 0}  # nobody knows who wrote them
    assert [row.id for row in rows(tmp_path / "usage.sqlite")] == ["b", "a"]


async def test_old_records_are_forgotten_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FORGOTTEN_AT_ONCE", 3)
    monkeypatch.setattr(time, "time", lambda: NOW + 100 + 2 * usage.DAY_SECONDS)
    file, day = tmp_path / "usage.sqlite", float(usage.DAY_SECONDS)
    async with writing(file) as records:
        for number in range(5):
            records.note(ended(f"old-{number}", finished=101.0 + number))
        records.note(ended("young", finished=103 + day))
    for left in (["young", "old-4", "old-3"], ["young"]):
        async with writing(file, days=1) as records:
            records.note(ended(f"new-{left}", finished=100 + 2 * day))
        assert [row.id for row in rows(file) if "new" not in row.id] == left


@given(data=st.data())
def test_totals_and_pages_are_those_of_a_loop_over_the_records(data: st.DataObject) -> None:
    times = st.integers(0, 96).map(lambda part: part * 1800.5)  # several at one time, in an hour, in a day
    histories = [
        ended(
            str(number),
            tenant=data.draw(st.sampled_from(["alice", "bob"])),
            model=data.draw(st.sampled_from(["one", "two"])),
            finished=data.draw(times),
            reason=data.draw(st.sampled_from(["stop", "cancelled"])),
            error=data.draw(st.sampled_from([None, "engine_error"])),
            usage=Usage(prompt_tokens=data.draw(st.integers(0, 9)), completion_tokens=number),
        )
        for number in range(data.draw(st.integers(0, 12)))
    ]
    tenant = data.draw(st.sampled_from([None, "alice"]))
    start, end = (NOW + data.draw(times) for _ in range(2))
    wanted = UsageQuery(tenant, start, end)
    chosen = [h for h in histories if h.tenant in (tenant or h.tenant) and start <= NOW + (h.finished or 0) < end]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(table.SCHEMA)
        assert table.put(connection, histories, 0) == len(histories)
        assert table.put(connection, histories, 0) == 0

        limit, pages, after = data.draw(st.integers(1, 5)), list[UsageRecord](), None
        while True:
            page = table.records(connection, wanted, limit, after)
            pages += [row for row in page.data if isinstance(row, UsageRecord)]
            if not page.has_more:
                break
            assert len(page.data) == limit
            after = page.last_id
        newest = sorted(enumerate(chosen), key=lambda one: (one[1].finished, one[0]), reverse=True)
        assert [row.id for row in pages] == [history.id for _, history in newest]

        forgotten = NOW + data.draw(times)  # sums are kept beside the records, and go with them
        table.put(connection, (), forgotten)
        chosen = [history for history in chosen if NOW + (history.finished or 0) >= forgotten]
        for group_by, period in (("day", 86400), ("hour", 3600), ("model", 0)):
            sums: dict[tuple[object, ...], list[int]] = {}
            for history in chosen:
                at = int(NOW + (history.finished or 0))
                key = (at - at % period, None, history.tenant) if period else (None, history.model, history.tenant)
                row = sums.setdefault(key, [0] * 5)
                counts = history.usage.prompt_tokens, history.usage.completion_tokens
                for place, count in enumerate((1, history.error is not None, history.reason == "cancelled", *counts)):
                    row[place] += count
            found = hours.totals(connection, *wanted, group_by, 100).data  # type: ignore[arg-type]  # a GroupBy
            assert {
                (one.start, one.model, one.key_digest): [
                    *(one.requests, one.errors, one.cancelled, one.prompt_tokens, one.completion_tokens)
                ]
                for one in found
                if isinstance(one, UsageTotal)
            } == sums
            assert len(found) == len(sums)


def test_records_from_before_there_were_sums_are_in_them(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "usage.sqlite")) as connection:
        connection.executescript(table.SCHEMA)
        connection.executescript("DROP TRIGGER count_in; DROP TRIGGER count_out; DROP TABLE hours")
        table.put(connection, [ended("a"), ended("b", adapter="legal"), ended("c", reason="cancelled")], 0)
        connection.commit()
        for _ in range(2):  # as two processes do
            connection.executescript(table.SCHEMA)
        found = hours.totals(connection, *EVERYTHING, "model", 100).data
    assert [(one.adapter, one.requests, one.cancelled) for one in found if isinstance(one, UsageTotal)] == [
        (None, 2, 1),
        ("legal", 1, 0),
    ]


@pytest.mark.parametrize(
    ("data", "days", "kept"), [(None, None, 0), ("x", None, 90), ("x", 0, 0), ("x", 7, 7), (None, 7, 7)]
)
def test_how_long_records_are_kept(data: str | None, days: int | None, kept: int) -> None:
    settings = ServeSettings(engine=EngineSettings(model="tiny"))
    assert days_kept(structs.replace(settings, data=data, usage_days=days)) == kept
