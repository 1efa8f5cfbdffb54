"""A flight recorder's file: what it records, a line of JSON each, written by a thread within a second.

So it is there after whatever ended the process; SIGKILL costs the last second. The thread also notes when the event
loop is stuck. The loop never waits for the disk, which is why the file is not mapped: a store into a mapped page can
wait for a write of that page. A file with MOST_BYTES takes the place of the older one; of earlier processes KEPT stay.
"""

import errno
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
        """`clock`: the recorder's time minus that of time.perf_counter, which no clock of the wall can move."""
        self._flight = flight
        self._clock = clock
        make_room(folder)
        began = time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())
        self.path = folder / f"{began}-{os.getpid()}-{next(_numbers)}.jsonl"
        self._file, self._size = self._begin_file()
        self._last: list[object] = [None, None]  # written, of steps and of events
        self._whole = True  # the last line in the file
        self._ended = Event()
        self._thread = Thread(target=self._run, name="flight recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the rest. Waits a second for the disk at most."""
        self._ended.set()
        self._thread.join(WRITE_SECONDS)

    def _begin_file(self) -> tuple[int, int]:
        """A new file under its name, and how much is in it."""
        file = open_own(self.path, os.O_WRONLY)
        line = ("began", time.perf_counter() + self._clock, time.time(), os.getpid(), version("triolet"))
        try:
            return file, os.write(file, _line(line))
        except OSError:
            os.close(file)
            raise

    def _run(self) -> None:
        failing, ended = False, False
        while not ended:
            ended = self._ended.wait(WRITE_SECONDS)
            now = time.perf_counter() + self._clock
            stuck = now - self._flight.beat > STUCK_SECONDS
            self._flight.change(now, "loop", "stuck" if stuck else "turns")
            try:
                self._write()
                failing = False
            except OSError as error:  # it may pass: what is in the ring by then is written later
                if not failing:
                    _LOG.warning("the flight recorder cannot write %s: %s", self.path, error)
                failing = True
        os.close(self._file)

    def _write(self) -> None:
        kinds = tuple(self._flight.steps), tuple(self._flight.events)
        new = [self._new(which, records) for which, records in enumerate(kinds)]
        if not any(new):
            return
        if self._size > MOST_BYTES:
            with suppress(FileNotFoundError):  # a disk was full behind this the last time
                self.path.replace(self.path.with_suffix(OLDER))
            old, (self._file, self._size) = self._file, self._begin_file()
            os.close(old)
            self._whole = True
        data = b"".join(_line(record) for records in new for record in records)
        if not self._whole:
            data = b"\n" + data
        self._whole = False
        written = os.write(self._file, data)
        self._size += written
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._whole = True
        for which, records in enumerate(new):
            if records:
                self._last[which] = records[-1]

    def _new(self, which: int, records: tuple[object, ...]) -> deque[object]:
        """Those behind the last one that was written."""
        found = deque[object]()
        for record in reversed(records):
            if record is self._last[which]:
                break
            found.appendleft(record)
        return found


def make_room(folder: Path) -> None:
    """The folder, with at most KEPT recordings of processes that are gone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in (*folder.glob("*.stacks"), *folder.glob("*.upgrade")):
        if _is_left(other):
            other.unlink(missing_ok=True)
    left = sorted(file for file in folder.glob("*.jsonl") if _is_left(file))  # their names begin with a time
    for file in left[:-KEPT]:
        file.unlink(missing_ok=True)
        file.with_suffix(OLDER).unlink(missing_ok=True)


def _is_left(file: Path) -> bool:
    """Whether its process is gone; False if it is unlinked meanwhile."""
    try:
        with file.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_own(file: Path, flags: int) -> int:
    """A new file, which `make_room` of other processes leaves alone as long as it is open."""
    number = os.open(file, flags | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_SH)
    except OSError:
        os.close(number)
        raise
    return number


def _line(record: object) -> bytes:
    return msgspec.json.encode(record) + b"\n"
