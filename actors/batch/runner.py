"""Runs the batches of a data folder: finds them, runs their lines, and ends them. One per server, beside the scheduler.

New batches, cancelled ones and expired ones are found by looking at the database, since web processes may be elsewhere.
Each batch has a task. Of one API key one batch runs at a time, the oldest; the scheduler divides the time between keys.
A line that ran when the process was killed has no result, and runs again.
"""

import logging
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
import trio

from ...protocol.errors import ApiError, ErrorCode
from ...protocol.openai_batches import FILE_SECONDS, UNENDED, BatchEndpoint, BatchLine, BatchStatus, LineResponse
from ...protocol.reports import BatchFigures
from . import batches, files
from .batches import OpenBatch, PlacedLine
from .folder import DataFolder
from .results import INPUT_GONE, fail_lines, line_result, write_results
from .validation import validate

_LINE: Final = msgspec.json.Decoder(BatchLine)
_LOG: Final = logging.getLogger("triolet.batches")
LOOK_SECONDS: Final = 0.5  # between looks at the database
CLEAN_SECONDS: Final = 600.0  # between looks for files that have expired
RETRY_SECONDS: Final = 5.0  # after the disk or the database failed
LINES_AT_ONCE: Final = 256  # that are read from the table, and as many may wait for their models
PASSING_SECONDS: Final = 1.0  # until a line is tried again that the engine could not run
# The engine's failures, not the line's: it runs again later.
PASSING: Final[frozenset[ErrorCode]] = frozenset(
    {"server_overloaded", "rate_limit_exceeded", "engine_unavailable", "shutting_down"}
)

AnswerLine = Callable[[BatchEndpoint, bytes, str, str], Awaitable[bytes]]  # of a body, a key, a name; raises ApiError


class BatchRunner:
    """`answer` runs the body of one line, and `rows` of them run at a time. `figures` are kept up to date."""

    def __init__(
        self, folder: DataFolder, answer: AnswerLine, *, rows: int, max_line_bytes: int, figures: BatchFigures
    ) -> None:
        self._folder = folder
        self._answer = answer
        self._rows = rows
        self._max_line_bytes = max_line_bytes
        self._figures = figures
        self._running: dict[str, trio.CancelScope] = {}  # batches, by id
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)  # by key
        self._checks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)  # by key: whose input file is read
        self._cleaned = -CLEAN_SECONDS
        # What came before is left by a process that is gone, unless that one still receives files.
        self._began = 0 if folder.follows else int(time.time())

    async def wait_for_work(self) -> None:
        """Wait until the folder exists and this process may run its batches. A folder that it cannot use is no error:
        most servers run no batches."""
        told, before = False, ""
        while True:
            problem = ""
            try:
                if self._folder.exists:
                    if self._folder.try_lock():
                        return
                    problem = f"another server runs the batches of {self._folder.path}"
            except OSError as error:
                problem = f"no batches run: {error}"
            if problem and problem == before and not told:  # a server that hands over lets go soon
                told = True
                _LOG.warning("%s; --data names another folder", problem)
            before = problem
            await trio.sleep(LOOK_SECONDS)

    async def run(self, until_idle: bool = False) -> None:
        """Run until cancelled; with `until_idle` until every batch has ended."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    await self._clean()
                    unended = await self._folder.read(batches.unended)
                    for one in unended:
                        await self._look_at(one, nursery)
                except (OSError, sqlite3.Error) as error:
                    _LOG.error("the data folder %s cannot be used: %s", self._folder.path, error)
                    await trio.sleep(RETRY_SECONDS)
                    continue
                self._figures.open = len(unended)
                if until_idle and not unended and not self._running:
                    return
                await trio.sleep(LOOK_SECONDS)

    async def _look_at(self, one: OpenBatch, nursery: trio.Nursery) -> None:
        batch = one.batch
        if batch.id not in self._running:
            status = await self._folder.read(batches.status_of, batch.id)
            if status not in UNENDED:
                return  # it has ended since it was seen
            self._running[batch.id] = trio.CancelScope()
            await nursery.start(self._live, one, status)
        if batch.status == "cancelling" or time.time() >= batch.expires_at:
            self._running[batch.id].cancel()

    async def _live(self, one: OpenBatch, status: BatchStatus, task_status: trio.TaskStatus) -> None:
        """A batch from here to its end. The scope is cancelled when it is to run no longer."""
        batch, scope = one.batch, self._running[one.batch.id]
        task_status.started()  # nothing waits between here and the locks, so they are asked for in the order of age
        try:
            with scope:
                if status == "validating":
                    async with self._checks[one.tenant]:
                        status = await validate(self._folder, batch, self._max_line_bytes)
                if status == "in_progress":
                    async with self._turns[one.tenant]:
                        await self._run_lines(one)
            if status != "failed":
                status = await write_results(self._folder, one)
            _LOG.info("%s is %s", batch.id, status)
        except* (OSError, sqlite3.Error) as group:
            _LOG.error("%s stops for a while: %s", batch.id, group.exceptions[0])
            await trio.sleep(RETRY_SECONDS)
        finally:
            del self._running[batch.id]

    async def _run_lines(self, one: OpenBatch) -> None:
        batch, left = one.batch, 0
        try:
            input = os.open(self._folder.file_path(batch.input_file_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            await fail_lines(self._folder, batch.id, INPUT_GONE)
            return
        to_rows, lines = trio.open_memory_channel[PlacedLine](0)
        aside = 0  # lines whose model is not loaded, and whose rows others have
        open_sources = 1  # of lines for the rows: the table, and each line that has no result yet

        def end_source() -> None:
            nonlocal open_sources
            open_sources -= 1
            if not open_sources:
                to_rows.close()

        async def run_row() -> None:
            nonlocal left, aside
            async for line in lines:
                body = await trio.to_thread.run_sync(os.pread, input, line.length, line.start)
                while not await self._run_line(one, line, body):
                    if aside < LINES_AT_ONCE:
                        aside += 1
                        nursery.start_soon(run_later, line)
                        break
                    await trio.sleep(PASSING_SECONDS)
                else:
                    left -= 1
                    self._figures.lines_waiting -= 1
                    end_source()

        async def run_later(line: PlacedLine) -> None:
            nonlocal aside
            await trio.sleep(PASSING_SECONDS)
            await to_rows.send(line)
            aside -= 1

        try:
            counts = await self._folder.read(batches.line_counts, batch.id)
            left = counts.total - counts.completed - counts.failed
            self._figures.lines_waiting += left
            async with trio.open_nursery() as nursery:
                for _ in range(min(self._rows, left)):
                    nursery.start_soon(run_row)
                after = 0
                while found := await self._folder.read(batches.next_lines, batch.id, after, LINES_AT_ONCE):
                    for line in found:
                        open_sources += 1
                        await to_rows.send(line)
                    after = found[-1].number
                end_source()
        finally:
            os.close(input)
            self._figures.lines_waiting -= left

    async def _run_line(self, one: OpenBatch, line: PlacedLine, data: bytes) -> bool:
        """One line to its result in the table. A mistake of ours is the line's result: it must not end the server.

        False: its model is not loaded, and it has no result yet.
        """
        name = f"{one.batch.id}-{line.number}"
        while True:
            try:
                body = bytes(_LINE.decode(data).body)
                answer, status = await self._answer(one.batch.endpoint, body, one.tenant, name), 200
                break
            except ApiError as error:
                if error.code == "model_loading":
                    return False
                if error.code not in PASSING:
                    answer, status = msgspec.json.encode(error.body()), error.status
                    break
                await trio.sleep(max(PASSING_SECONDS, error.retry_after or 0))
            except Exception as error:
                _LOG.error("%s failed", name, exc_info=error)
                bug = ApiError("internal_error", "The server made a mistake while running this line; see its log.")
                answer, status = msgspec.json.encode(bug.body()), bug.status
                break
        failed = status != 200
        response = LineResponse(status_code=status, request_id=name, body=msgspec.Raw(answer))
        result = line_result(line.custom_id, response)
        await self._folder.run(batches.put_result, one.batch.id, line.number, result, failed=failed)
        if failed:
            self._figures.lines_failed += 1
        else:
            self._figures.lines_completed += 1
        return True

    async def _clean(self) -> None:
        """Forget files that have expired or never arrived, and what has no row: a process was killed in between."""
        if trio.current_time() - self._cleaned < CLEAN_SECONDS:
            return
        self._cleaned = trio.current_time()
        now = int(time.time())
        gone = await self._folder.run(files.take_expired, now, self._began)
        await self._folder.run(batches.forget_old, now - FILE_SECONDS)
        known = await self._folder.read(files.known_ids)

        def remove() -> None:
            for path in (self._folder.path / "files").iterdir():
                with suppress(FileNotFoundError):
                    if path.name in gone or (path.name not in known and path.stat().st_mtime < self._began):
                        path.unlink()

        await trio.to_thread.run_sync(remove)
