"""The runner on a real folder, with an engine that the test answers for."""

import json
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import trio

from triolet.actors.batch import batches, runner, validation
from triolet.actors.batch.folder import DataFolder
from triolet.actors.batch.incoming import IncomingFile
from triolet.actors.batch.runner import BatchRunner
from triolet.protocol.errors import ApiError
from triolet.protocol.openai_batches import BatchObject, CreateBatch
from triolet.protocol.reports import BatchFigures

Answer = Callable[[str, bytes, str, str], Awaitable[bytes]]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[DataFolder]:
    folder = DataFolder(tmp_path / "data")
    yield folder
    folder.close()


def lines(count: int) -> bytes:
    row = {"method": "POST", "url": "/v1/completions"}
    return b"\n".join(json.dumps({"custom_id": f"{n}", "body": {"n": n}} | row).encode() for n in range(count))


async def create(folder: DataFolder, content: bytes, tenant: str = "a", window: int = 3600) -> str:
    incoming = IncomingFile(folder, tenant=tenant, filename="in", purpose="batch", keep_seconds=3600)
    async with incoming:
        await incoming.write(content)
        await incoming.complete()
    body = CreateBatch(input_file_id=incoming.id, endpoint="/v1/completions", completion_window="24h")
    return (await folder.run(batches.create, body, tenant, int(time.time()), window)).id


async def run(folder: DataFolder, answer: Answer, figures: BatchFigures | None = None, rows: int = 4) -> None:
    with trio.fail_after(60):  # only a hang takes so long
        counted = figures or BatchFigures()
        await BatchRunner(folder, answer, rows=rows, max_line_bytes=10_000, figures=counted).run(until_idle=True)


async def ended(folder: DataFolder, id: str, tenant: str = "a") -> tuple[BatchObject, list[dict[str, Any]]]:
    """The batch, and its results by both files."""
    batch = await folder.run(batches.get, id, tenant)
    found: list[dict[str, Any]] = []
    for file in (batch.output_file_id, batch.error_file_id):
        if file is not None:
            found += [json.loads(line) for line in folder.file_path(file).read_bytes().splitlines()]
    return batch, found


async def echo(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
    await trio.lowlevel.checkpoint()
    return body


def names(results: list[dict[str, Any]]) -> Counter[str]:
    return Counter(result["custom_id"] for result in results)


def each_once(count: int) -> Counter[str]:
    return Counter(str(number) for number in range(count))


async def test_every_line_once_in_order_and_the_figures_add_up(folder: DataFolder) -> None:
    figures = BatchFigures()

    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        if body == b'{"n": 7}':
            raise ApiError("invalid_value", "seven", param="n")
        return await echo(endpoint, body, tenant, name)

    id = await create(folder, lines(150))
    await run(folder, answer, figures)
    batch, results = await ended(folder, id)
    assert batch.status == "completed"
    assert names(results) == each_once(150)
    assert [result["response"]["body"]["n"] for result in results[:-1]] == [n for n in range(150) if n != 7]
    assert results[-1]["response"]["status_code"] == 400
    assert (batch.request_counts.completed, batch.request_counts.failed) == (149, 1)
    assert (figures.lines_completed, figures.lines_failed, figures.lines_waiting) == (149, 1, 0)


async def test_stopped_anywhere_no_line_is_lost_or_has_two_results(folder: DataFolder) -> None:
    """The runner is cancelled after every few calls, with lines in flight, and begins anew."""
    id = await create(folder, BOM_UTF8 + lines(60))
    answered = Counter[bytes]()
    for patience in range(1, 200):
        calls = 0
        with trio.CancelScope() as scope:

            async def answer(
                endpoint: str,
                body: bytes,
                tenant: str,
                name: str,
                scope: trio.CancelScope = scope,
                most: int = patience,
            ) -> bytes:
                nonlocal calls
                calls += 1
                if calls > most:
                    scope.cancel()
                answered[body] += 1
                return await echo(endpoint, body, tenant, name)

            await run(folder, answer)
            break
    batch, results = await ended(folder, id)
    assert batch.status == "completed"
    assert names(results) == each_once(60)
    assert max(answered.values()) > 1  # some were in flight, and ran again


async def test_the_engine_s_own_failures_are_no_results(folder: DataFolder) -> None:
    tries = 0

    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ApiError("engine_unavailable", "the worker is starting", retry_after=0)
        return await echo(endpoint, body, tenant, name)

    id = await create(folder, lines(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "PASSING_SECONDS", 0.01)
        await run(folder, answer)
    batch, results = await ended(folder, id)
    assert (batch.status, batch.request_counts.completed, tries) == ("completed", 1, 3)
    assert results[0]["response"]["status_code"] == 200


async def test_lines_whose_model_is_not_loaded_leave_their_rows_to_others(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PASSING_SECONDS", 0.01)
    monkeypatch.setattr(runner, "LINES_AT_ONCE", 8)  # as many may be aside
    figures, answered, loaded = BatchFigures(), Counter[int](), trio.Event()

    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        number = json.loads(body)["n"]
        if number in (*range(7), *range(20, 30)) and not loaded.is_set():
            if answered.total() == 13:  # all up to the second lot
                loaded.set()
            raise ApiError("model_loading", "not loaded")
        answered[number] += 1
        return await echo(endpoint, body, tenant, name)

    id = await create(folder, lines(40))
    await run(folder, answer, figures, rows=2)
    batch, results = await ended(folder, id)
    assert (batch.status, names(results)) == ("completed", each_once(40))
    assert set(answered.values()) == {1}
    assert (figures.lines_completed, figures.lines_waiting) == (40, 0)


async def test_a_mistake_of_ours_is_the_line_s_result(folder: DataFolder) -> None:
    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        if json.loads(body)["n"] == 1:
            raise KeyError("a defect")
        return await echo(endpoint, body, tenant, name)

    id = await create(folder, lines(3))
    await run(folder, answer)
    batch, results = await ended(folder, id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 1)
    assert results[-1]["custom_id"] == "1"
    assert results[-1]["response"]["body"]["error"]["code"] == "internal_error"


async def test_a_body_too_deep_to_decode_ends_no_server(folder: DataFolder) -> None:
    """The reader has a thread's whole stack, the runner less: there is a depth that passes only the first."""
    depths = range(850, 1000, 3)
    rows = [b'{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"n":' % n + b"[" * n for n in depths]
    ids = [await create(folder, row + b"]" * n + b"}}") for n, row in zip(depths, rows, strict=True)]
    await run(folder, echo)
    found = [await folder.run(batches.get, id, "a") for id in ids]
    assert {batch.status for batch in found} <= {"completed", "failed"}


async def test_a_folder_that_cannot_be_locked_is_said_once_and_ends_no_server(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(folder, lines(1))
    in_the_way = folder.path / "lock"
    in_the_way.mkdir()
    tries, try_lock = 0, folder.try_lock

    def counted() -> bool:
        nonlocal tries
        tries += 1
        if tries == 4:
            in_the_way.rmdir()
        return try_lock()

    monkeypatch.setattr(folder, "try_lock", counted)
    with trio.fail_after(60):  # only a hang takes so long
        await BatchRunner(folder, echo, rows=1, max_line_bytes=10_000, figures=BatchFigures()).wait_for_work()
    assert tries == 4
    (said,) = [record.getMessage() for record in caplog.records if record.name == "triolet.batches"]
    assert str(in_the_way) in said
    assert "--data" in said


async def test_of_a_key_one_input_file_is_read_at_a_time(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, most = 0, 0

    async def counted(folder: DataFolder, batch: BatchObject, max_line_bytes: int) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        status = await validation.validate(folder, batch, max_line_bytes)
        reading -= 1
        return status

    monkeypatch.setattr(runner, "validate", counted)
    for _ in range(5):
        await create(folder, lines(2))
    await run(folder, echo)
    assert most == 1


async def test_an_expired_batch_keeps_what_is_done(folder: DataFolder) -> None:
    id = await create(folder, lines(10))

    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        if json.loads(body)["n"] == 3:
            await folder.run(lambda c: expire(c, id))
            await trio.sleep_forever()
        return await echo(endpoint, body, tenant, name)

    await run(folder, answer, rows=1)
    batch, results = await ended(folder, id)
    assert batch.status == "expired"
    assert batch.expired_at is not None
    assert names(results) == each_once(10)
    assert Counter(result["error"]["code"] for result in results if result["error"]) == {"batch_expired": 7}


async def test_an_expired_batch_that_is_killed_while_it_ends_is_expired(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when every line has its result, and the files are not written."""
    id = await create(folder, lines(3))
    with trio.CancelScope() as scope:

        async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
            await folder.run(lambda c: expire(c, id))
            await trio.sleep_forever()
            raise AssertionError

        class Killed(IncomingFile):
            async def __aenter__(self) -> Self:
                scope.cancel()
                await trio.lowlevel.checkpoint()
                raise AssertionError

        with monkeypatch.context() as patch:
            patch.setattr("triolet.actors.batch.results.IncomingFile", Killed)
            await run(folder, answer, rows=1)
    assert scope.cancelled_caught
    assert (await folder.run(batches.get, id, "a")).request_counts.failed == 3
    await run(folder, echo)
    batch, found = await ended(folder, id)
    assert (batch.status, batch.completed_at) == ("expired", None)
    assert names(found) == each_once(3)


async def test_a_batch_that_expires_before_its_lines_are_read_is_expired(folder: DataFolder) -> None:
    id = await create(folder, lines(3), window=0)
    await run(folder, echo)
    batch, found = await ended(folder, id)
    assert (batch.status, batch.completed_at, found) == ("expired", None, [])


def expire(connection: Any, id: str) -> None:
    """Its 24 hours are over."""
    batches.move(connection, id, ("in_progress",), "in_progress", 0, {"expires_at": 1})


async def test_one_batch_of_a_key_runs_at_a_time_and_keys_do_not_wait_for_each_other(folder: DataFolder) -> None:
    first, second = await create(folder, lines(6)), await create(folder, lines(6))
    other = await create(folder, lines(6), "b")
    calls: list[str] = []
    other_ended = trio.Event()

    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        calls.append(name.rpartition("-")[0])
        if calls.count(other) == 6:
            other_ended.set()
        if calls[-1] == first:
            await other_ended.wait()
            while await folder.run(batches.status_of, second) == "validating":
                pass
            for _ in range(20):  # the second would begin meanwhile
                await folder.run(batches.status_of, second)
        return await echo(endpoint, body, tenant, name)

    await run(folder, answer)
    for id, tenant in ((first, "a"), (second, "a"), (other, "b")):
        batch, results = await ended(folder, id, tenant)
        assert batch.status == "completed"
        assert names(results) == each_once(6)
    assert [id for id in calls if id != other] == [first] * 6 + [second] * 6


async def test_a_cancel_stays_whatever_the_runner_does_meanwhile(folder: DataFolder) -> None:
    id = await create(folder, lines(2))
    await folder.run(batches.cancel, id, "a", 7)
    assert await folder.run(batches.move, id, ("validating",), "in_progress", 8) == "cancelling"
    await run(folder, echo)
    batch, _ = await ended(folder, id)
    assert (batch.status, batch.cancelling_at, batch.in_progress_at) == ("cancelled", 7, None)


async def test_the_first_result_of_a_line_stays(folder: DataFolder) -> None:
    id = await create(folder, lines(1))
    await folder.run(batches.add_lines, id, [batches.PlacedLine(1, "a", 0, 9)])
    for result in (b"first", b"second"):
        await folder.run(partial(batches.put_result, failed=False), id, 1, result)
    assert await folder.run(partial(batches.results, failed=False), id, 0, 9) == [(1, b"first")]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n \n", "empty_file"),
        (b'{"custom_id": "a"', "invalid_json_line"),
        (b'{"custom_id": "", "method": "POST", "url": "/v1/completions", "body": {}}', "invalid_line"),
        (b'{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "invalid_line"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": 3}', "invalid_line"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}', "mismatched_endpoint"),
        (lines(1) + b" " * 20_000, "line_too_long"),
        (lines(1) + b"\xff", "invalid_json_line"),
    ],
)
async def test_a_bad_line_fails_the_batch_with_its_number(folder: DataFolder, content: bytes, code: str) -> None:
    good = lines(3) + b"\n" if code != "empty_file" else b""
    id = await create(folder, good + content.replace(b'"0"', b'"z"'))
    await run(folder, echo)
    batch, results = await ended(folder, id)
    assert (batch.status, results) == ("failed", [])
    assert batch.errors is not None
    (error,) = batch.errors.data
    assert (error.code, error.line) == (code, 4 if good else None)


async def test_too_many_lines_fail_the_batch(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_LINES", 100)
    ids = [await create(folder, lines(100)), await create(folder, lines(101))]
    await run(folder, echo)
    found = [(await ended(folder, id))[0] for id in ids]
    assert [batch.status for batch in found] == ["completed", "failed"]


async def test_a_deleted_input_fails_the_batch(folder: DataFolder) -> None:
    id = await create(folder, lines(1))
    batch = await folder.run(batches.get, id, "a")
    folder.file_path(batch.input_file_id).unlink()
    await run(folder, echo)
    batch, _ = await ended(folder, id)
    assert batch.errors is not None
    assert batch.errors.data[0].code == "missing_file"


async def test_an_input_that_is_gone_in_the_middle_ends_the_batch_and_what_is_done_is_kept(folder: DataFolder) -> None:
    id, figures, scope = await create(folder, lines(200)), BatchFigures(), trio.CancelScope()

    async def answer(endpoint: str, body: bytes, tenant: str, name: str) -> bytes:
        if json.loads(body)["n"] == 3:
            scope.cancel()
        return await echo(endpoint, body, tenant, name)

    with scope:
        await run(folder, answer, figures, rows=1)
    folder.file_path((await folder.run(batches.get, id, "a")).input_file_id).unlink()
    await run(folder, echo, figures)
    batch, results = await ended(folder, id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 3, 197)
    assert (names(results), figures.lines_waiting) == (each_once(200), 0)
    assert Counter(result["error"]["code"] for result in results if result["error"]) == {"missing_file": 197}
