"""A SQLite database in the data folder, as one process uses it.

Every process of a server opens it for itself; SQLite (WAL) keeps them apart. SQL runs in threads, so the event loop
never waits for a disk: one transaction after another in one, and in the other what only reads, which waits for no
transaction, of whatever process. A killed process loses no committed change: the
write-ahead log is the kernel's once it is written.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")

# A file that is there is never opened but by SQLite: closing any descriptor of it would drop the locks that all of this
# process has on it (POSIX). Other processes would take it for unused, and remove the log that this one writes to.
_MAKING: Final = threading.Lock()
BUSY_SECONDS: Final = 30.0  # for another process's transaction; each takes milliseconds


def data_folder(data: str | None) -> Path:
    """The folder of `--data`, or where programs keep their state (the XDG base directory specification)."""
    if data:
        return Path(data)
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "triolet"


class Database:
    """Opened, and made, by its first transaction. `schema` may be run again."""

    def __init__(self, file: Path, schema: str) -> None:
        self.file = file
        self._schema = schema
        self._one_change = trio.CapacityLimiter(1)
        self._one_reading = trio.CapacityLimiter(1)
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None

    @property
    def exists(self) -> bool:
        return self._connection is not None or self.file.exists()

    async def run(self, change: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs) -> T:
        """`change(connection, …)` as one transaction: all of it happens, or nothing."""

        def run() -> T:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection, *args, **named)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # after some errors, as of a full disk, SQLite has rolled back by itself
                    connection.execute("ROLLBACK")
                raise
            return result

        return await trio.to_thread.run_sync(run, limiter=self._one_change)

    async def read(self, look: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs) -> T:
        """`look(connection, …)` at what was committed when it began. It cannot write, and takes no lock to do so."""
        if self._connection is None:
            await self.run(lambda _: None)  # the tables are there afterwards

        def run() -> T:
            if self._reader is None:
                self._reader = self._connect()
                self._reader.execute("PRAGMA query_only = ON")
            self._reader.execute("BEGIN")
            try:
                return look(self._reader, *args, **named)
            finally:
                self._reader.execute("ROLLBACK")

        return await trio.to_thread.run_sync(run, limiter=self._one_reading)

    def close(self) -> None:
        for connection in (self._reader, self._connection):
            if connection is not None:
                connection.close()
        self._connection = self._reader = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _MAKING, suppress(FileExistsError):
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # for nobody else to read
            connection = self._connect()
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.executescript(self._schema)
            except BaseException:
                connection.close()  # or a transaction of the schema would go on, and hold its lock
                raise
            self._connection = connection
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
