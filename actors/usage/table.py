"""The table of usage records: a row for each request that has ended. Each function is one transaction's work.

A row has times, counts, names and reasons, and nothing that was asked or answered. A key is there as its digest.
"""

import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...protocol.errors import ApiError
from ...protocol.usage import UsageList, UsageRecord
from ..gateway.history import History
from . import hours

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,              -- its X-Request-Id
    tenant TEXT NOT NULL,            -- the digest of its API key
    model TEXT NOT NULL,             -- as the answer calls it
    adapter TEXT,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    arrived REAL NOT NULL, ended REAL NOT NULL,  -- Unix time
    queued REAL, first_token REAL,   -- seconds after its arrival; NULL: it never came so far
    reason TEXT NOT NULL, error TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS requests_by_end ON requests (ended);
CREATE INDEX IF NOT EXISTS requests_of_key ON requests (tenant, ended);
PRAGMA user_version = 1;
"""
SCHEMA: Final = _TABLE + hours.SCHEMA
FORGOTTEN_AT_ONCE: Final = 2000  # old rows of one transaction, which so stays short: twice what it may add

_PUT: Final = f"INSERT INTO requests VALUES ({', '.join('?' * 14)}) ON CONFLICT (id) DO NOTHING"
_FORGET: Final = "DELETE FROM requests WHERE rowid IN (SELECT rowid FROM requests WHERE ended < ? LIMIT ?)"
_RECORD: Final = (
    "id, name, tenant, model, adapter, prompt_tokens, completion_tokens, cached_tokens, round(arrived, 4), "
    "round(ended, 4), round(queued, 4), round(first_token, 4), reason, error, round(ended - arrived, 4)"
)


class UsageQuery(NamedTuple):
    """Which records: of one key, or of all (None), that ended from `start` to before `end`, in Unix time."""

    tenant: str | None
    start: float
    end: float

    def where(self) -> tuple[str, tuple[object, ...]]:
        """As SQL, with its values."""
        time = "ended >= ? AND ended < ?"
        if self.tenant is None:
            return time, (self.start, self.end)
        return f"tenant = ? AND {time}", (self.tenant, self.start, self.end)


def put(connection: sqlite3.Connection, ended: Iterable[History], forget_before: float) -> int:
    """Add the records of these requests; returns how many there were not yet. Some old ones are forgotten.

    A record that is there stays: so a group may be tried again whose transaction failed nobody knows where.
    """
    connection.execute(_FORGET, (forget_before, FORGOTTEN_AT_ONCE))
    return connection.executemany(_PUT, map(_row, ended)).rowcount


def _row(history: History) -> tuple[object, ...]:
    assert history.finished is not None, history.id
    arrival, usage = history.arrival, history.usage
    return (
        *(history.id, history.name, history.tenant, history.model, history.adapter),
        *(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        *(history.wall_clock + arrival, history.wall_clock + history.finished),
        *(None if time is None else time - arrival for time in (history.started, history.first_token)),
        *(history.reason, history.error),
    )


def records(connection: sqlite3.Connection, wanted: UsageQuery, limit: int, after: str | None = None) -> UsageList:
    """Single records, the newest first. Raises ApiError (400) if there is no record `after`."""
    where, values = wanted.where()
    if after is not None:
        found = connection.execute(f"SELECT ended, rowid FROM requests WHERE {where} AND id = ?", (*values, after))
        if (place := found.fetchone()) is None:
            raise ApiError("invalid_value", f"after: there is no record {after[:64]!r}.", param="after")
        where, values = f"{where} AND (ended, rowid) < (?, ?)", (*values, *place)
    rows = connection.execute(
        f"SELECT {_RECORD} FROM requests WHERE {where} ORDER BY ended DESC, rowid DESC LIMIT ?", (*values, limit + 1)
    ).fetchall()
    data = [UsageRecord(**dict(zip(UsageRecord.__struct_fields__, row, strict=True))) for row in rows[:limit]]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return UsageList(data=[*data], first_id=ends[0], last_id=ends[1], has_more=len(rows) > limit)
