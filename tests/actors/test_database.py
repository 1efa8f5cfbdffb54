"""A database that two parts of a process have open, while other processes come and go."""

import sqlite3
import subprocess
import sys
from pathlib import Path

from triolet.actors.database import Database

SCHEMA = "CREATE TABLE IF NOT EXISTS words (word TEXT NOT NULL) STRICT;"
READ = """
import sqlite3, sys
print(*(word for (word,) in sqlite3.connect(sys.argv[1]).execute("SELECT word FROM words")))
"""


def say(connection: sqlite3.Connection, word: str) -> None:
    connection.execute("INSERT INTO words VALUES (?)", (word,))


def said(file: Path) -> str:
    """As another process sees it, which then leaves. If it takes itself for the last one, it removes the log."""
    return subprocess.run([sys.executable, "-c", READ, str(file)], check=True, capture_output=True, text=True).stdout


async def test_a_second_opening_in_a_process_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """POSIX drops a process's locks on a file when it closes any descriptor of that file. Others then take the
    database for unused, remove its write-ahead log, and what is written to that from then on is lost."""
    file = tmp_path / "words.sqlite"
    one, other = Database(file, SCHEMA), Database(file, SCHEMA)
    await one.run(say, "one")
    await other.run(say, "two")
    assert said(file) == "one two\n"
    await one.run(say, "three")
    await other.run(say, "four")
    assert said(file) == "one two three four\n"
    one.close()
    assert said(file) == "one two three four\n"
    other.close()


async def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "words.sqlite", SCHEMA)
    await database.run(say, "one")
    assert (database.file.stat().st_mode & 0o777) == 0o600
    database.close()
