"""The tables of batches and of their lines. Each function is one transaction's work (`DataFolder.run`).

A line has a result once, in one transaction, and is never run again afterwards. When a batch ends its results are
written to files; the rows go in the transaction that names these files. So whatever is killed in between, no line is
lost and none is answered twice.
"""

import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from ...protocol.errors import ApiError
from ...protocol.openai_batches import (
    DAY_SECONDS,
    FILE_SECONDS,
    UNENDED,
    BatchError,
    BatchErrors,
    BatchList,
    BatchObject,
    BatchStatus,
    CreateBatch,
    RequestCounts,
)
from . import files

OPEN_BATCHES: Final = 100  # of one API key that have not ended
_BATCH: Final = msgspec.json.Decoder(BatchObject)
_OPEN: Final = f"status IN ({', '.join('?' * len(UNENDED))})"


class OpenBatch(NamedTuple):
    """A batch that has not ended, and whose it is."""

    batch: BatchObject
    tenant: str
    keep_seconds: int


class PlacedLine(NamedTuple):
    """A line of an input file: where it stands."""

    number: int
    custom_id: str
    start: int
    length: int


def create(
    connection: sqlite3.Connection,
    body: CreateBatch,
    tenant: str,
    now: int,
    window: int = DAY_SECONDS,
    *,
    storage: int | None = None,
    several_tenants: bool = False,
) -> BatchObject:
    """It expires after `window` seconds. `storage` is the room for all files in bytes; None: without a bound.

    Raises ApiError: 404 for the input file, 400 if it is not for batches, 413 if there is no room for the list of its
    lines, 429 with too many open batches.
    """
    try:
        file = files.get(connection, body.input_file_id, tenant, now)
    except ApiError as error:
        raise ApiError(error.code, error.message, param="input_file_id") from None
    if file.purpose != "batch":
        text = f"input_file_id: the purpose of this file is {file.purpose}; upload one with purpose=batch."
        raise ApiError("invalid_value", text, param="input_file_id")
    (count,) = connection.execute(
        f"SELECT count(*) FROM batches WHERE tenant = ? AND {_OPEN}", (tenant, *UNENDED)
    ).fetchone()
    if count >= OPEN_BATCHES:
        text = f"{count} batches have not ended yet, and no more are taken; wait for one, or cancel one."
        raise ApiError("rate_limit_exceeded", text, retry_after=60)
    if storage is not None:
        files.check_room_for_lines(connection, file, tenant, storage, several_tenants=several_tenants)
    batch = BatchObject(
        id="batch_" + secrets.token_hex(16),
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + window,
        metadata=body.metadata,
    )
    keep = body.output_expires_after.seconds if body.output_expires_after is not None else FILE_SECONDS
    connection.execute(
        "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)",
        (batch.id, tenant, batch.status, now, batch.input_file_id, keep, msgspec.json.encode(batch)),
    )
    return batch


def get(connection: sqlite3.Connection, id: str, tenant: str) -> BatchObject:
    """Raises ApiError (404), for another tenant's batch too."""
    row = connection.execute("SELECT record FROM batches WHERE id = ? AND tenant = ?", (id, tenant)).fetchone()
    if row is None:
        raise ApiError("not_found", f"There is no batch {id[:64]!r}.", param="batch_id")
    return _batch(connection, row[0])


def page(connection: sqlite3.Connection, tenant: str, *, limit: int, after: str | None = None) -> BatchList:
    """The newest first. Raises ApiError (400) if there is no batch `after`."""
    where, values = "tenant = ?", [tenant]
    if after is not None:
        found = connection.execute("SELECT rowid FROM batches WHERE id = ? AND tenant = ?", (after, tenant)).fetchone()
        if found is None:
            raise ApiError("invalid_value", f"after: there is no batch {after[:64]!r}.", param="after")
        where, values = "tenant = ? AND rowid < ?", [tenant, found[0]]
    rows = connection.execute(
        f"SELECT record FROM batches WHERE {where} ORDER BY rowid DESC LIMIT ?", (*values, limit + 1)
    ).fetchall()
    data = [_batch(connection, record) for (record,) in rows[:limit]]
    return BatchList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(rows) > limit,
    )


def status_of(connection: sqlite3.Connection, id: str) -> BatchStatus:
    (record,) = connection.execute("SELECT record FROM batches WHERE id = ?", (id,)).fetchone()
    return _BATCH.decode(record).status


def cancel(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> BatchObject:
    """Its runner ends it soon. Raises ApiError: 404, and 409 if it has ended. A second time changes nothing."""
    batch = get(connection, id, tenant)
    if batch.status not in ("validating", "in_progress", "cancelling"):
        raise ApiError("conflict", f"The batch is {batch.status}; only one that waits or runs can be cancelled.")
    move(connection, id, ("validating", "in_progress"), "cancelling", now)
    return get(connection, id, tenant)


def unended(connection: sqlite3.Connection) -> list[OpenBatch]:
    """All batches that are not over, the oldest first."""
    rows = connection.execute(
        f"SELECT record, tenant, keep_seconds FROM batches WHERE {_OPEN} ORDER BY rowid", UNENDED
    ).fetchall()
    return [OpenBatch(_BATCH.decode(record), tenant, keep) for record, tenant, keep in rows]


def move(
    connection: sqlite3.Connection,
    id: str,
    expected: tuple[BatchStatus, ...],
    status: BatchStatus,
    now: int,
    more: Mapping[str, object] | None = None,
) -> BatchStatus:
    """Move a batch on, with the time, if it is in an expected status; returns the one that it is in then.

    `more` are further fields of the BatchObject.
    """
    (record,) = connection.execute("SELECT record FROM batches WHERE id = ?", (id,)).fetchone()
    batch = _BATCH.decode(record)
    if batch.status not in expected:
        return batch.status
    moved = structs.replace(batch, status=status, **{f"{status}_at": now, **(more or {})})
    connection.execute(
        "UPDATE batches SET status = ?, record = ? WHERE id = ?", (status, msgspec.json.encode(moved), id)
    )
    return status


def begin_end(connection: sqlite3.Connection, id: str, now: int) -> BatchStatus:
    """Its lines run no longer; returns how it will end. That is decided once, whatever is killed from here on."""
    (record,) = connection.execute("SELECT record FROM batches WHERE id = ?", (id,)).fetchone()
    batch = _BATCH.decode(record)
    if batch.status == "cancelling":
        return "cancelled"
    expired = batch.expired_at is not None
    if batch.status != "finalizing":
        expired = batch.status == "validating" or bool(next_lines(connection, id, 0, 1))
        more = {"expired_at": now} if expired else {}
        move(connection, id, ("validating", "in_progress"), "finalizing", now, more)
    return "expired" if expired else "completed"


def fail(connection: sqlite3.Connection, id: str, errors: list[BatchError], now: int) -> BatchStatus:
    """The input file cannot be run."""
    forget_lines(connection, id)
    return move(connection, id, ("validating",), "failed", now, {"errors": BatchErrors(data=errors)})


def end(
    connection: sqlite3.Connection, id: str, status: BatchStatus, now: int, output: str | None, error: str | None
) -> None:
    """A batch is over, and what its lines gave is in these files."""
    counts = line_counts(connection, id)
    more = {"output_file_id": output, "error_file_id": error, "request_counts": counts}
    move(connection, id, UNENDED, status, now, more)
    forget_lines(connection, id)


def forget_old(connection: sqlite3.Connection, created_before: int) -> None:
    """Forget batches that ended long ago; their files are gone too."""
    connection.execute(f"DELETE FROM batches WHERE created_at < ? AND NOT ({_OPEN})", (created_before, *UNENDED))


def forget_lines(connection: sqlite3.Connection, id: str) -> None:
    connection.execute("DELETE FROM lines WHERE batch = ?", (id,))


def add_lines(connection: sqlite3.Connection, id: str, lines: Iterable[PlacedLine]) -> list[PlacedLine]:
    """Lines without results; returns those whose custom_id the batch already has."""
    twice: list[PlacedLine] = []
    for line in lines:
        try:
            connection.execute(
                "INSERT INTO lines (batch, number, custom_id, start, length) VALUES (?, ?, ?, ?, ?)", (id, *line)
            )
        except sqlite3.IntegrityError:
            twice.append(line)
    return twice


def next_lines(connection: sqlite3.Connection, id: str, after: int, limit: int) -> list[PlacedLine]:
    """Lines without a result that follow number `after`."""
    rows = connection.execute(
        "SELECT number, custom_id, start, length FROM lines WHERE batch = ? AND failed IS NULL AND number > ? "
        "ORDER BY number LIMIT ?",
        (id, after, limit),
    ).fetchall()
    return [PlacedLine(*row) for row in rows]


def put_result(connection: sqlite3.Connection, id: str, number: int, result: bytes, *, failed: bool) -> None:
    """The one result of a line; a second one is not taken."""
    connection.execute(
        "UPDATE lines SET failed = ?, result = ? WHERE batch = ? AND number = ? AND failed IS NULL",
        (failed, result, id, number),
    )


def results(
    connection: sqlite3.Connection, id: str, after: int, limit: int, *, failed: bool
) -> list[tuple[int, bytes]]:
    """Numbers and results of the lines that follow number `after`."""
    return connection.execute(
        "SELECT number, result FROM lines WHERE batch = ? AND failed = ? AND number > ? ORDER BY number LIMIT ?",
        (id, failed, after, limit),
    ).fetchall()


def line_counts(connection: sqlite3.Connection, id: str) -> RequestCounts:
    total, completed, failed = connection.execute(
        "SELECT count(*), count(*) FILTER (WHERE failed = 0), count(*) FILTER (WHERE failed = 1) "
        "FROM lines WHERE batch = ?",
        (id,),
    ).fetchone()
    return RequestCounts(total=total, completed=completed, failed=failed)


def _batch(connection: sqlite3.Connection, record: bytes) -> BatchObject:
    batch = _BATCH.decode(record)
    if batch.status not in UNENDED:
        return batch
    return structs.replace(batch, request_counts=line_counts(connection, batch.id))
