"""A flight recorder's file: what it records, a line of JSON each, written by a thread within a second.

So it is there after whatever ended the process; SIGKILL costs the last second. The thread also notes when the event
loop is stuck. The loop never waits for the disk, which is why the file is not mapped: a store into a mapped page can
wait for a write of that page. A file with MOST_BYTES takes the place of the older one; of earlier processes KEPT stay.
"""

import fcntl
import logging
import os
import time
from collections import deque
from contextlib import suppress
from importlib.metadata import version
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Final

import msgspec

from ..flight import Flight

FOLDER: Final = "flight"  # in the data folder
OLDER: Final = ".older"
MOST_BYTES: Final = 1 << 20
KEPT: Final = 16
WRITE_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 3.0  # without a turn of the event loop, which has one a second
_numbers: Final = count(1)
_LOG: Final = logging.getLogger("triolet.flight")


class FlightFile:
    """Written from now on until `close`. Raises OSError if the folder cannot be used."""

    def __init__(self, flight: Flight, folder: Path, clock: float) -> None:
        """`clock`: the recorder's time minus Unix time."""
        self._flight = flight
        self._clock = clock
        make_room(folder)
        began = time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())
        self.path = folder / f"{began}-{os.getpid()}-{next(_numbers)}.jsonl"
        self._open()
        self._last: list[object] = [None, None]  # written, of steps and of events
        self._ended = Event()
        self._thread = Thread(target=self._run, name="flight recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the rest. Waits a second for the disk at most."""
        self._ended.set()
        self._thread.join(WRITE_SECONDS)

    def _open(self) -> None:
        self._file = open_own(self.path, os.O_WRONLY)
        now = time.time()
        self._size = os.write(self._file, _line(("began", now + self._clock, now, os.getpid(), version("triolet"))))

    def _run(self) -> None:
        try:
            while True:
                ended = self._ended.wait(WRITE_SECONDS)
                now = time.time() + self._clock
                stuck = now - self._flight.beat > STUCK_SECONDS
                self._flight.change(now, "loop", "stuck" if stuck else "turns")
                self._write()
                if ended:
                    return
        except OSError as error:
            _LOG.warning("the flight recorder writes %s no longer: %s", self.path, error)
        finally:
            os.close(self._file)

    def _write(self) -> None:
        new = [*self._new(0, tuple(self._flight.steps)), *self._new(1, tuple(self._flight.events))]
        if not new:
            return
        if self._size > MOST_BYTES:
            self.path.replace(self.path.with_suffix(OLDER))
            os.close(self._file)
            self._open()
        self._size += os.write(self._file, b"".join(map(_line, new)))

    def _new(self, which: int, records: tuple[object, ...]) -> deque[object]:
        """Those behind the last one that was written."""
        found = deque[object]()
        for record in reversed(records):
            if record is self._last[which]:
                break
            found.appendleft(record)
        if found:
            self._last[which] = found[-1]
        return found


def make_room(folder: Path) -> None:
    """The folder, with at most KEPT files of earlier processes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
    for file in files[:-KEPT]:
        with suppress(OSError), file.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its process lives
            file.unlink()


def open_own(file: Path, flags: int) -> int:
    """A new file, which `make_room` of other processes leaves alone as long as it is open."""
    number = os.open(file, flags | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(number, fcntl.LOCK_SH)
    return number


def _line(record: object) -> bytes:
    return msgspec.json.encode(record) + b"\n"
