"""Usage records, written: what the gateway says of each request that has ended, in groups, to a table on disk.

Contract: `note` never waits and costs one append to a list; SQL runs in a thread. A record is in the table at the
latest `GROUP_SECONDS` and one transaction after its request's end: a killed process loses those, and no others. While
the disk is slow, or takes nothing, records wait. The list is bounded: those that come while it is full are lost, and
counted. Nothing of this is ever a client's trouble.
"""

import logging
import sqlite3
import time
from collections import Counter
from typing import Final

import trio

from ...protocol.settings import ServeSettings
from ..database import Database, data_folder
from ..gateway.history import History
from . import table

GROUP_SECONDS: Final = 0.2  # from the first record of a group
MAX_GROUP: Final = 1000  # of one transaction: some ten milliseconds
MAX_WAITING: Final = 16_384  # requests, of some 600 bytes each; covers a minute at 250 a second
RETRY_SECONDS: Final = 5.0  # after the disk or the database failed
DEFAULT_DAYS: Final = 90
DAY_SECONDS: Final = 86_400
_LOG: Final = logging.getLogger("triolet.usage")


def days_kept(settings: ServeSettings) -> int:
    """How long records are kept; 0: none are written."""
    if settings.usage_days is not None:
        return settings.usage_days
    return 0 if settings.data is None else DEFAULT_DAYS


def usage_database(settings: ServeSettings) -> Database:
    return Database(data_folder(settings.data) / "usage.sqlite", table.SCHEMA)


class UsageRecords:
    """The records of one gateway on their way to the table. Start `run`, and call `end` when it has ended."""

    def __init__(self, database: Database, days: int) -> None:
        self.counts = Counter({"written": 0, "lost": 0})
        self._database = database
        self._seconds = days * DAY_SECONDS
        self._waiting: list[History] = []  # only `_write` takes from it
        self._arrived = trio.Event()
        self._failing = False

    def note(self, history: History) -> None:
        """A request has ended."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(history)
            self._arrived.set()
        else:
            self.counts["lost"] += 1

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            await trio.sleep(RETRY_SECONDS if self._failing else GROUP_SECONDS)
            self._arrived = trio.Event()
            await self._write()
            if self._waiting:
                self._arrived.set()

    async def end(self) -> None:
        """Write the rest, whatever else is cancelled."""
        with trio.CancelScope(shield=True):
            await self._write()
            await trio.to_thread.run_sync(self._database.close)  # it may wait for the disk, and others still stream
        self.counts["lost"] += len(self._waiting)
        if lost := self.counts["lost"]:
            _LOG.error("%d usage records were not written", lost)

    async def _write(self) -> None:
        """Write what waits, or nothing if the disk does not take it."""
        while group := self._waiting[:MAX_GROUP]:
            try:
                new = await self._database.run(table.put, group, time.time() - self._seconds)
            except (sqlite3.Error, OSError) as error:
                if not self._failing:
                    text = "usage records cannot be written to %s: %s; up to %d wait, and others are lost"
                    _LOG.error(text, self._database.file, error, MAX_WAITING)
                self._failing = True
                return
            except Exception:  # a mistake of ours: not worth a stream
                _LOG.exception("%d usage records cannot be written", len(group))
                self.counts["lost"] += len(group)
                del self._waiting[: len(group)]
                continue
            # No cancellation comes between the transaction and here, so no group is written twice.
            del self._waiting[: len(group)]
            self.counts["written"] += new
            if self._failing:
                _LOG.warning("usage records are written again; %d were lost", self.counts["lost"])
            self._failing = False


def usage_records(settings: ServeSettings) -> UsageRecords | None:
    """None if none are to be written."""
    days = days_kept(settings)
    return UsageRecords(usage_database(settings), days) if days else None
