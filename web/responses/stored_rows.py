"""The table of stored responses. Each function is one transaction's work (`Database.run`).

All responses together take at most so many bytes, each with its input. Where there is no room, the API key that holds
most gives up its oldest. Triggers count what each key holds, so that no transaction has to add it up.
"""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from ...protocol.errors import ApiError
from ...protocol.response_answers import ResponseError
from ...protocol.response_items import MAX_ITEMS, InputItem, ItemReference

KEEP_SECONDS: Final = 30 * 24 * 3600  # as long as OpenAI does
MAX_CONVERSATION_BYTES: Final = 32 << 20
LOST_SECONDS: Final = 30  # without a sign of the process that makes a response
OVERHEAD: Final = 512  # bytes of a row besides its two texts

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, previous TEXT, created_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    input BLOB NOT NULL,    -- its items, as JSON
    response BLOB NOT NULL  -- the object, as JSON
) STRICT;
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created_at);
CREATE INDEX IF NOT EXISTS responses_by_tenant ON responses (tenant, created_at);
CREATE TABLE IF NOT EXISTS running (  -- responses that are made in the background
    id TEXT PRIMARY KEY, runner TEXT NOT NULL,  -- which process makes it
    seen_at INTEGER NOT NULL,                   -- when that process said so last
    cancelled INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS held (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;
CREATE TRIGGER IF NOT EXISTS hold AFTER INSERT ON responses BEGIN
    INSERT INTO held VALUES (new.tenant, new.bytes) ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + new.bytes;
END;
CREATE TRIGGER IF NOT EXISTS give_up AFTER DELETE ON responses BEGIN
    UPDATE held SET bytes = bytes - old.bytes WHERE tenant = old.tenant;
    DELETE FROM held WHERE tenant = old.tenant AND bytes = 0;
END;
PRAGMA user_version = 1;
"""


class StoredRow(NamedTuple):
    """A response to store, with the items of its own input."""

    id: str
    tenant: str
    previous: str | None
    created_at: int
    input: bytes
    response: bytes

    @property
    def bytes(self) -> int:
        return len(self.input) + len(self.response) + OVERHEAD


def said_items(response: bytes) -> list[InputItem]:
    """The output of a response in JSON, as the input of the next."""
    return _OUTPUT.decode(response).output


class _Output(msgspec.Struct):
    output: list[InputItem]


_ITEMS = msgspec.json.Decoder(list[InputItem])
_OUTPUT = msgspec.json.Decoder(_Output)
_RAW_ITEMS = msgspec.json.Decoder(list[Raw])
_MINE = "id = ? AND tenant = ? AND created_at > ?"


def keep(connection: sqlite3.Connection, row: StoredRow, storage: int, now: int) -> None:
    """Store a response, and forget what is too old or has no room."""
    connection.execute("DELETE FROM responses WHERE created_at <= ?", (now - KEEP_SECONDS,))
    connection.execute(
        "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.id, row.tenant, row.previous, row.created_at, row.bytes, row.input, row.response),
    )
    while _total(connection) > storage:
        connection.execute(
            "DELETE FROM responses WHERE rowid = (SELECT rowid FROM responses WHERE tenant = "
            "(SELECT tenant FROM held ORDER BY bytes DESC LIMIT 1) ORDER BY created_at, rowid LIMIT 1)"
        )


def _total(connection: sqlite3.Connection) -> int:
    (held,) = connection.execute("SELECT total(bytes) FROM held").fetchone()
    return int(held)


def begin(connection: sqlite3.Connection, row: StoredRow, runner: str, storage: int, now: int) -> None:
    """Store a response that is made in the background, by the process `runner`."""
    keep(connection, row, storage, now)
    connection.execute("INSERT INTO running (id, runner, seen_at) VALUES (?, ?, ?)", (row.id, runner, now))


def progress(connection: sqlite3.Connection, row: StoredRow) -> None:
    """Store how it stands, unless it was deleted meanwhile."""
    connection.execute("UPDATE responses SET response = ? WHERE id = ?", (row.response, row.id))


def end(connection: sqlite3.Connection, row: StoredRow, storage: int, now: int) -> None:
    """Store how it ended, unless it was deleted meanwhile."""
    connection.execute("DELETE FROM running WHERE id = ?", (row.id,))
    if connection.execute("DELETE FROM responses WHERE id = ?", (row.id,)).rowcount:
        keep(connection, row, storage, now)


def beat(connection: sqlite3.Connection, runner: str, ids: Collection[str], now: int) -> list[str]:
    """The process still makes these; returns those that it shall end: cancelled or deleted, in whatever process."""
    connection.execute("UPDATE running SET seen_at = ? WHERE runner = ?", (now, runner))
    kept = connection.execute(
        "SELECT id FROM running JOIN responses USING (id) WHERE runner = ? AND NOT cancelled", (runner,)
    )
    return [*({*ids} - {id for (id,) in kept})]


def cancel(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> bool:
    """Ask for the end of a response; False if it is not being made. Raises ApiError (404)."""
    get(connection, id, tenant, now)
    return connection.execute("UPDATE running SET cancelled = 1 WHERE id = ?", (id,)).rowcount > 0


def look(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> bytes | None:
    """The response as JSON; None if nobody makes it any more, which `get` notes. Raises ApiError (404)."""
    stored = _column(connection, "response", id, tenant, now)
    lost = "SELECT id FROM running WHERE id = ? AND seen_at < ?"
    return None if connection.execute(lost, (id, now - LOST_SECONDS)).fetchone() else stored


def get(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> bytes:
    """The response as JSON. Raises ApiError (404), for another tenant's too."""
    stored = _column(connection, "response", id, tenant, now)
    lost = connection.execute("DELETE FROM running WHERE id = ? AND seen_at < ?", (id, now - LOST_SECONDS)).rowcount
    if not lost:
        return stored
    response = msgspec.json.decode(stored, type=dict[str, object])
    error = ResponseError(code="server_error", message="The server process that made this response is gone.")
    stored = msgspec.json.encode(response | {"status": "failed", "error": error})
    connection.execute("UPDATE responses SET response = ? WHERE id = ?", (stored, id))
    return stored


def input_items(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> list[Raw]:
    """The items of a response's own input, in their order. Raises ApiError (404)."""
    return _RAW_ITEMS.decode(_column(connection, "input", id, tenant, now))


def delete(connection: sqlite3.Connection, id: str, tenant: str, now: int) -> None:
    """Raises ApiError (404)."""
    get(connection, id, tenant, now)
    connection.execute("DELETE FROM responses WHERE id = ?", (id,))


def recall(
    connection: sqlite3.Connection, previous: str | None, items: Sequence[InputItem], tenant: str, now: int
) -> tuple[list[InputItem], list[InputItem]]:
    """The conversation up to the response `previous`, and `items` with what they refer to.

    Raises ApiError (400, 404, or 409 if `previous` has not ended).
    """
    running = connection.execute(
        "SELECT 1 FROM running JOIN responses USING (id) WHERE id = ? AND tenant = ? AND seen_at >= ?",
        (previous, tenant, now - LOST_SECONDS),
    )
    if running.fetchone():
        message = f"{previous} has not ended yet; wait for it."
        raise ApiError("conflict", message, param="previous_response_id")
    earlier = [] if previous is None else _conversation(connection, previous, tenant, now)
    found = _referred(connection, [item.id or "" for item in items if isinstance(item, ItemReference)], tenant, now)
    return earlier, [found[item.id or ""] if isinstance(item, ItemReference) else item for item in items]


def _referred(connection: sqlite3.Connection, ids: list[str], tenant: str, now: int) -> dict[str, InputItem]:
    """These items and those beside them. Bounded, since a few bytes of a request may refer to any stored item."""
    found: dict[str, InputItem] = {}
    seen: set[str] = set()
    room = MAX_CONVERSATION_BYTES
    for id in ids:
        if id in seen:
            raise ApiError("invalid_value", f"input refers to {id[:64]!r} twice.", param="input")
        seen.add(id)
        if id not in found:
            beside, size = _items_beside(connection, id, tenant, now, room)
            found |= beside
            room -= size
            if id not in found:
                raise ApiError("not_found", f"There is no stored item {id[:64]!r}.", param="input")
    return found


def _conversation(connection: sqlite3.Connection, last: str, tenant: str, now: int) -> list[InputItem]:
    rows: list[tuple[str | None, bytes, bytes]] = connection.execute(
        "WITH RECURSIVE chain (depth, total, previous, input, response) AS ("
        f" SELECT 0, bytes, previous, input, response FROM responses WHERE {_MINE}"
        " UNION ALL"
        " SELECT depth + 1, total + r.bytes, r.previous, r.input, r.response FROM chain JOIN responses AS r"
        " ON r.id = chain.previous AND r.tenant = ? WHERE r.created_at > ? AND depth < ? AND total + r.bytes <= ?"
        ") SELECT previous, input, response FROM chain ORDER BY depth DESC",
        (last, tenant, now - KEEP_SECONDS, tenant, now - KEEP_SECONDS, MAX_ITEMS, MAX_CONVERSATION_BYTES),
    ).fetchall()
    if not rows:
        raise unknown(last, "previous_response_id")
    if rows[0][0] is not None:
        message = (
            f"The beginning of this conversation is no longer stored: {rows[0][0]} was deleted or had to make room, or "
            "the conversation is too long. Begin a new one."
        )
        raise ApiError("not_found", message, param="previous_response_id")
    return [item for _, input, said in rows for item in (*_ITEMS.decode(input), *_OUTPUT.decode(said).output)]


def _items_beside(
    connection: sqlite3.Connection, item_id: str, tenant: str, now: int, room: int
) -> tuple[dict[str, InputItem], int]:
    """All items of the response in whose input or output the item is, by id, and the bytes that they take.

    None if there is no such response. Raises ApiError (400) if they take more than `room` bytes.
    """
    (row, *_) = connection.execute(
        f"SELECT bytes, input, response FROM responses WHERE {_MINE}",
        (response_of(item_id), tenant, now - KEEP_SECONDS),
    ).fetchall() or [None]
    if row is None:
        return {}, 0
    if row[0] > room:  # before they are decoded
        message = (
            f"input refers to items of responses that take more than {MAX_CONVERSATION_BYTES} bytes together; "
            "refer to fewer, or send the items themselves."
        )
        raise ApiError("invalid_value", message, param="input")
    items = [*_ITEMS.decode(row[1]), *_OUTPUT.decode(row[2]).output]
    return {item.id: item for item in items if item.id is not None}, row[0]


def response_of(item_id: str) -> str:
    """The id of the response that an item belongs to: `msg_PROCESS-NUMBER_0` is of `resp_PROCESS-NUMBER`."""
    return "resp_" + "_".join(item_id.split("_")[1:-1])


def _column(connection: sqlite3.Connection, column: str, id: str, tenant: str, now: int) -> bytes:
    row: tuple[bytes] | None = connection.execute(
        f"SELECT {column} FROM responses WHERE {_MINE}", (id, tenant, now - KEEP_SECONDS)
    ).fetchone()
    if row is None:
        raise unknown(id, "response_id")
    return row[0]


def unknown(id: str, param: str) -> ApiError:
    """The same for every reason, so that nobody learns of another's responses."""
    message = f"There is no stored response {id[:64]!r}: it was not stored (store: true), was deleted, or is too old."
    return ApiError("not_found", message, param=param)
