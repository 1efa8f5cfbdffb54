"""The table of files. Each function is one transaction's work (`DataFolder.run`).

All files together, those that still arrive and the tables of running batches included, may take `storage` bytes. With
several API keys, a key may hold at most as many as then stay free for all others, like places for requests.
Times are seconds since 1970.
"""

import secrets
import sqlite3
from typing import Final

from ...protocol.errors import ApiError
from ...protocol.openai_batches import MAX_LINES, UNENDED, FileList, FileObject, FilePurpose

_COLUMNS: Final = "id, bytes, created_at, expires_at, filename, purpose"
_USED_BY: Final = f"input_file_id = ? AND status IN ({', '.join('?' * len(UNENDED))})"
_MIB: Final = 1 << 20
LINE_BYTES: Final = 300  # measured: a row and its places in the indexes, besides its name, which is there twice
_LINES_OF: Final = 5  # times the bytes of a file, its lines take in the table at most: a line has 67 at least
MOST_LINE_BYTES: Final = MAX_LINES * (LINE_BYTES + 2 * 512)  # of one batch, before it has results


def new_file_id() -> str:
    return "file-" + secrets.token_hex(16)


def begin(
    connection: sqlite3.Connection, id: str, tenant: str, filename: str, purpose: FilePurpose, now: int, keep: int
) -> None:
    """A file begins to arrive; it takes no room yet."""
    connection.execute(
        "INSERT INTO files VALUES (?, ?, ?, ?, 0, 0, ?, ?)", (id, tenant, filename, purpose, now, now + keep)
    )


def reserve(connection: sqlite3.Connection, id: str, size: int, storage: int, *, several_tenants: bool) -> None:
    """Room for a file that grows to `size`. Raises ApiError (413)."""
    (tenant, held) = connection.execute("SELECT tenant, bytes FROM files WHERE id = ?", (id,)).fetchone()
    _refuse_full(connection, "file", size, held, tenant, storage, several_tenants=several_tenants)
    connection.execute("UPDATE files SET bytes = ? WHERE id = ?", (size, id))


def check_room_for_lines(
    connection: sqlite3.Connection, file: FileObject, tenant: str, storage: int, *, several_tenants: bool
) -> None:
    """Room for the lines of a batch of this file, before they are read. Raises ApiError (413)."""
    size = min(_LINES_OF * file.bytes, MOST_LINE_BYTES)
    _refuse_full(connection, "input_file_id", size, 0, tenant, storage, several_tenants=several_tenants)


def _refuse_full(
    connection: sqlite3.Connection,
    param: str,
    size: int,
    held: int,
    tenant: str,
    storage: int,
    *,
    several_tenants: bool,
) -> None:
    """Raises ApiError (413) unless what holds `held` bytes of this tenant may grow to `size`."""
    free = storage - used(connection) + held
    if several_tenants:
        free = (free + used(connection, tenant) - held) // 2 - (used(connection, tenant) - held)
    if size > free:
        what = "The file does" if param == "file" else f"The list of this batch's lines ({size / _MIB:,.1f} MiB) does"
        whose = "this API key's share of " if several_tenants else ""
        message = (
            f"{what} not fit: {max(free, 0) / _MIB:,.1f} MiB are left of {whose}the storage for files "
            f"({storage / _MIB:,.0f} MiB, --batch-storage). Delete files that you no longer need."
        )
        raise ApiError("storage_full", message, param=param)


def complete(connection: sqlite3.Connection, id: str, size: int, keep: int | None = None) -> FileObject:
    """All its bytes are on disk."""
    connection.execute("UPDATE files SET bytes = ?, arrived = 1 WHERE id = ?", (size, id))
    if keep is not None:
        connection.execute("UPDATE files SET expires_at = created_at + ? WHERE id = ?", (keep, id))
    return _file(connection.execute(f"SELECT {_COLUMNS} FROM files WHERE id = ?", (id,)).fetchone())


def get(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> FileObject:
    """Raises ApiError (404), for another tenant's file too."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM files WHERE id = ? AND tenant = ? AND arrived AND expires_at > ?", (id, tenant, now)
    ).fetchone()
    if row is None:
        raise ApiError("not_found", f"There is no file {id[:64]!r}, or it has expired.", param="file_id")
    return _file(row)


def page(
    connection: sqlite3.Connection,
    tenant: str,
    now: int,
    *,
    limit: int,
    after: str | None = None,
    purpose: str | None = None,
    ascending: bool = False,
) -> FileList:
    """Raises ApiError (400) if there is no file `after`."""
    where, values = "tenant = ? AND arrived AND expires_at > ?", [tenant, now]
    if purpose is not None:
        where, values = f"{where} AND purpose = ?", [*values, purpose]
    if after is not None:
        found = connection.execute("SELECT rowid FROM files WHERE id = ? AND tenant = ?", (after, tenant)).fetchone()
        if found is None:
            raise ApiError("invalid_value", f"after: there is no file {after[:64]!r}.", param="after")
        where, values = f"{where} AND rowid {'>' if ascending else '<'} ?", [*values, found[0]]
    order = "ASC" if ascending else "DESC"
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM files WHERE {where} ORDER BY rowid {order} LIMIT ?", (*values, limit + 1)
    ).fetchall()
    data = [_file(row) for row in rows[:limit]]
    return FileList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(rows) > limit,
    )


def delete(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> None:
    """Forget a file. Raises ApiError: 404, and 409 while a batch reads it."""
    get(connection, id, tenant, now)
    user = connection.execute(f"SELECT id FROM batches WHERE {_USED_BY}", (id, *UNENDED)).fetchone()
    if user is not None:
        raise ApiError("conflict", f"The batch {user[0]} reads this file; cancel it first, or wait for its end.")
    drop(connection, id)


def drop(connection: sqlite3.Connection, id: str) -> None:
    connection.execute("DELETE FROM files WHERE id = ?", (id,))


def take_expired(connection: sqlite3.Connection, now: int, abandoned_before: int) -> list[str]:
    """Forget files whose time is over, and those that stopped arriving; returns their ids. None that a batch reads."""
    rows = connection.execute(
        "SELECT id FROM files WHERE (expires_at <= ? OR (NOT arrived AND created_at < ?)) AND id NOT IN "
        f"(SELECT input_file_id FROM batches WHERE status IN ({', '.join('?' * len(UNENDED))}))",
        (now, abandoned_before, *UNENDED),
    ).fetchall()
    for (id,) in rows:
        drop(connection, id)
    return [id for (id,) in rows]


def known_ids(connection: sqlite3.Connection) -> set[str]:
    return {id for (id,) in connection.execute("SELECT id FROM files")}


def used(connection: sqlite3.Connection, tenant: str | None = None) -> int:
    """Bytes that files take, and batches whose results are not in a file yet: of one tenant, or of all.

    A batch that is still validated counts with as many as its lines may take.
    """
    whose, values = ("", ()) if tenant is None else (" AND tenant = ?", (tenant,))
    (files,) = connection.execute(f"SELECT coalesce(sum(bytes), 0) FROM files WHERE true{whose}", values).fetchone()
    (unread,) = connection.execute(
        f"SELECT coalesce(sum(min(? * (SELECT bytes FROM files WHERE id = input_file_id), ?)), 0) FROM batches "
        f"WHERE status = 'validating'{whose}",
        (_LINES_OF, MOST_LINE_BYTES, *values),
    ).fetchone()
    (lines,) = connection.execute(
        "SELECT coalesce(sum(? + 2 * length(CAST(custom_id AS BLOB)) + coalesce(length(result), 0)), 0) FROM lines "
        f"WHERE batch IN (SELECT id FROM batches WHERE status != 'validating'{whose})",
        (LINE_BYTES, *values),
    ).fetchone()
    return int(files + unread + lines)


def _file(row: tuple[str, int, int, int, str, FilePurpose]) -> FileObject:
    id, size, created_at, expires_at, filename, purpose = row
    return FileObject(
        id=id, bytes=size, created_at=created_at, expires_at=expires_at, filename=filename, purpose=purpose
    )
