"""The data folder: a SQLite database, the content of the files beside it, and which server it belongs to.

Nothing is made before the first file comes. A killed process loses no committed change (actors/database.py).

One server at a time: whoever runs the batches holds a lock on `lock`, in which stands which process that is. The lock
ends with the process, however that ends.
"""

import fcntl
import os
import socket
import sqlite3
from pathlib import Path
from typing import Final

from ...protocol.errors import ApiError
from ..database import Database

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,      -- while it arrives: the bytes that are reserved for it
    arrived INTEGER NOT NULL,    -- 1 when it is complete
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, created_at INTEGER NOT NULL,
    input_file_id TEXT NOT NULL,
    keep_seconds INTEGER NOT NULL,  -- its output and error files, from their creation
    record BLOB NOT NULL            -- the BatchObject as JSON, without its counts
) STRICT;
CREATE TABLE IF NOT EXISTS lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL,  -- from 1
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL, length INTEGER NOT NULL,  -- in the input file
    failed INTEGER,                                   -- NULL until it has a result
    result BLOB,                                      -- its line of the output or error file
    PRIMARY KEY (batch, number)
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS line_names ON lines (batch, custom_id);
CREATE INDEX IF NOT EXISTS open_lines ON lines (batch, failed, number);
PRAGMA user_version = 1;
"""


class DataFolder(Database):
    """One process's way to the folder."""

    def __init__(self, path: Path, *, follows: bool = False) -> None:
        """`follows`: this process takes the place of its parent, which still answers what it has begun."""
        super().__init__(path / "batches.sqlite", _SCHEMA)
        self.path = path
        self.follows = follows
        self._lock: int | None = None

    def file_path(self, id: str) -> Path:
        return self.path / "files" / id

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        (self.path / "files").mkdir(exist_ok=True, mode=0o700)
        return connection

    def close(self) -> None:
        super().close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def try_lock(self) -> bool:
        """Whether this process may run the folder's batches from now on. Raises OSError where it cannot be locked."""
        if self._lock is None:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(lock, 0)
                before = f"\n{_who(os.getppid())}" if self.follows else ""
                os.write(lock, f"{_who(os.getpid())}{before}".encode())
            except BlockingIOError:
                os.close(lock)
                return False
            except OSError:
                os.close(lock)
                raise
            self._lock = lock
        return True

    def refuse_if_foreign(self) -> None:
        """Raises ApiError (409) if another server runs the batches of this folder, or nobody can know."""
        if self._lock is not None or not self.exists:
            return
        try:
            owner = self._owner()
        except OSError as error:
            raise ApiError(
                "conflict",
                f"Whether another server runs the batches of {self.path} cannot be known: {error}. "
                "Start this one with --data and a folder on a local disk that it may write to.",
            ) from error
        ours = _who(os.getpid()), _who(os.getppid())  # a web process is its server's child, and the next server too
        lines = owner.splitlines() if owner is not None else []
        if lines and not any(line in ours for line in lines):
            raise ApiError(
                "conflict",
                f"Another server ({lines[0]}) runs the batches of {self.path}; "
                "start this one with --data and a folder of its own.",
            )

    def _owner(self) -> str | None:
        """Who holds the lock. Raises OSError."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(lock, 1024).decode(errors="replace")
        finally:
            os.close(lock)
        return None


def _who(pid: int) -> str:
    """A process, told from those of other machines and containers, and from later ones with its number."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # since boot: field 22 of proc(5)
    except (OSError, IndexError):
        ticks = "unknown"
    return f"process {pid} on {socket.gethostname()}, start {ticks}"
