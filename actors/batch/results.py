"""The end of a batch: every line's result goes to the output or the error file."""

import secrets
import sqlite3
import time
from functools import partial
from typing import Final

import msgspec

from ...protocol.openai_batches import BatchStatus, LineError, LineResponse, LineResult
from . import batches, files
from .batches import OpenBatch
from .folder import DataFolder
from .incoming import IncomingFile

LINES_AT_ONCE: Final = 64
_NOT_RUN: Final[dict[BatchStatus, LineError]] = {
    "expired": LineError(
        code="batch_expired",
        message="This request could not be executed before the completion window expired.",
    ),
    "cancelled": LineError(code="batch_cancelled", message="This request was not executed: the batch was cancelled."),
}

INPUT_GONE: Final = LineError(
    code="missing_file", message="This request was not executed: the input file is gone from the data folder."
)


def line_result(custom_id: str, response: LineResponse | None, error: LineError | None = None) -> bytes:
    """A line of an output or error file."""
    result = LineResult(id="batch_req_" + secrets.token_hex(16), custom_id=custom_id, response=response, error=error)
    return msgspec.json.encode(result) + b"\n"


async def write_results(folder: DataFolder, open_batch: OpenBatch) -> BatchStatus:
    """End a batch that runs no longer; returns how. Lines without a result were not run, and the error file says so."""
    batch = open_batch.batch
    end = await folder.run(batches.begin_end, batch.id, int(time.time()))
    if end in _NOT_RUN:
        await fail_lines(folder, batch.id, _NOT_RUN[end])
    incoming = partial(
        IncomingFile, folder, tenant=open_batch.tenant, purpose="batch_output", keep_seconds=open_batch.keep_seconds
    )
    async with (
        incoming(filename=f"{batch.id}_output.jsonl") as output,
        incoming(filename=f"{batch.id}_error.jsonl") as error,
    ):
        for file, failed in ((output, False), (error, True)):
            after = 0
            while rows := await folder.read(batches.results, batch.id, after, LINES_AT_ONCE, failed=failed):
                after = rows[-1][0]
                await file.write(b"".join(result for _, result in rows))
            await file.sync()
        kept = [file for file in (output, error) if file.size]
        await folder.run(
            _end, batch.id, end, kept, output.id if output.size else None, error.id if error.size else None
        )
        for file in kept:
            file.completed = True
    return end


async def fail_lines(folder: DataFolder, id: str, why: LineError) -> None:
    """The lines without a result are not run, and have this error as their result."""
    while lines := await folder.read(batches.next_lines, id, 0, LINES_AT_ONCE):
        await folder.run(_not_run, id, lines, why)


def _not_run(connection: sqlite3.Connection, id: str, lines: list[batches.PlacedLine], why: LineError) -> None:
    for line in lines:
        batches.put_result(connection, id, line.number, line_result(line.custom_id, None, why), failed=True)


def _end(
    connection: sqlite3.Connection,
    id: str,
    status: BatchStatus,
    kept: list[IncomingFile],
    output: str | None,
    error: str | None,
) -> None:
    """One transaction: the files count, the batch names them, and its lines are forgotten."""
    for file in kept:
        files.complete(connection, file.id, file.size)
    batches.end(connection, id, status, int(time.time()), output, error)
