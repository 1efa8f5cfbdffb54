"""Sums of the usage records by hour, which the database itself keeps: in each transaction, whoever writes.

Sums over millions of records would take many seconds; 90 days are 2,160 hours for each key and model. Where `start` or
`end` is within an hour, that hour's records are added one by one, so the sums are exact.
"""

import sqlite3
from math import inf
from typing import Final

from ...protocol.usage import GroupBy, UsageList, UsageTotal

HOUR: Final = 3600  # seconds

_COUNTS: Final = ("requests", "errors", "cancelled", "prompt_tokens", "completion_tokens", "cached_tokens")
_NAMES: Final = ", ".join(_COUNTS)
_SUMS: Final = ", ".join(f"sum({count})" for count in _COUNTS)


def _hour(row: str) -> str:
    """The key of `hours` for one row of `requests`."""
    return f"CAST({row}.ended AS INTEGER) / {HOUR} * {HOUR}, {row}.tenant, {row}.model, ifnull({row}.adapter, '')"


def _counts(row: str) -> list[str]:
    tokens = [f"{row}.{name}" for name in ("prompt_tokens", "completion_tokens", "cached_tokens")]
    return ["1", f"({row}.error IS NOT NULL)", f"({row}.reason = 'cancelled')", *tokens]


def _columns(row: str) -> str:
    return ", ".join([_hour(row), *_counts(row)])


_LESS: Final = ", ".join(f"{count} = {count} - {of}" for count, of in zip(_COUNTS, _counts("old"), strict=True))
# Triggers are in the file: so processes of an older version keep the sums as well.
SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS hours (
    hour INTEGER NOT NULL,           -- its begin in Unix time
    tenant TEXT NOT NULL, model TEXT NOT NULL, adapter TEXT NOT NULL,  -- empty: none
    {" INTEGER NOT NULL, ".join(_COUNTS)} INTEGER NOT NULL,
    PRIMARY KEY (tenant, hour, model, adapter)
) STRICT, WITHOUT ROWID;
WITH records(hour, tenant, model, adapter, {_NAMES}) AS (SELECT {_columns("requests")} FROM requests)
INSERT INTO hours SELECT hour, tenant, model, adapter, {_SUMS} FROM records
WHERE NOT EXISTS (SELECT 1 FROM hours) GROUP BY 1, 2, 3, 4;  -- of a file from before there were hours
CREATE TRIGGER IF NOT EXISTS count_in AFTER INSERT ON requests BEGIN
    INSERT INTO hours VALUES ({_columns("new")})
    ON CONFLICT DO UPDATE SET {", ".join(f"{count} = {count} + excluded.{count}" for count in _COUNTS)};
END;
CREATE TRIGGER IF NOT EXISTS count_out AFTER DELETE ON requests BEGIN
    UPDATE hours SET {_LESS}
        WHERE (hour, tenant, model, adapter) = ({_hour("old")});
    DELETE FROM hours WHERE requests = 0 AND (hour, tenant, model, adapter) = ({_hour("old")});
END;
COMMIT;
"""

_GROUPS: Final[dict[GroupBy, tuple[str, str]]] = {  # columns `start, model, adapter` of a total, and their order
    "day": ("hour / 86400 * 86400, NULL, NULL", "1 DESC, tenant"),
    "hour": ("hour, NULL, NULL", "1 DESC, tenant"),
    "model": ("NULL, model, nullif(adapter, '')", "2, 3, tenant"),
}


def totals(
    connection: sqlite3.Connection, tenant: str | None, start: float, end: float, group_by: GroupBy, limit: int
) -> UsageList:
    """Sums of what ended from `start` to before `end`, by key, and by day, hour or model, the newest first.

    Days and hours are those of UTC. `tenant`: of one key, or of all (None).
    """
    first, last = -(-start // HOUR) * HOUR, end // HOUR * HOUR  # the whole hours
    edges = [(start, min(first, end)), (last, end)] if first <= last else [(start, end), (inf, inf)]
    condition, values = ("", ()) if tenant is None else ("tenant = ? AND ", (tenant,))
    part = f"SELECT {_columns('requests')} FROM requests WHERE {condition}ended >= ? AND ended < ?"
    columns, order = _GROUPS[group_by]
    rows = connection.execute(
        f"SELECT {columns}, tenant, {_SUMS} FROM ("
        f"SELECT hour, tenant, model, adapter, {_NAMES} FROM hours WHERE {condition}hour >= ? AND hour < ? "
        f"UNION ALL {part} UNION ALL {part}) GROUP BY 1, 2, 3, 4 ORDER BY {order} LIMIT ?",
        (*values, first, last, *values, *edges[0], *values, *edges[1], limit + 1),
    ).fetchall()
    data = [UsageTotal(**dict(zip(UsageTotal.__struct_fields__, row, strict=True))) for row in rows[:limit]]
    return UsageList(data=[*data], has_more=len(rows) > limit)
