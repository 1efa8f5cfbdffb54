"""A server process under test as Linux accounts for it: CPU time, memory, wake-ups. Its worker's are left out."""

import re
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_WORKER: Final = b"scripted_worker"


class Usage(NamedTuple):
    """Seconds so far. `waited`: ready to run while others had the core, which is how a busy machine shows."""

    server: float
    worker: float
    waited: float


class ServerProcess:
    """A running server and the processes that it started to serve: all but the worker."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port
        self._fronts = [pid, *(child for child in descendants(pid) if _WORKER not in _command(child))]
        self._workers = [child for child in descendants(pid) if _WORKER in _command(child)]

    def usage(self) -> Usage:
        ran, waited = zip(*map(cpu_and_wait, self._fronts), strict=True)
        return Usage(sum(ran), sum(cpu_and_wait(pid)[0] for pid in self._workers), sum(waited))

    def resident_bytes(self) -> int:
        return sum(resident_bytes(pid) for pid in self._fronts)

    def wakeups(self) -> int:
        """How often a thread has slept and run again, or was preempted, so far."""
        return sum(wakeups(pid) for pid in self._fronts)


def _tasks(pid: int) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (_PROC / str(pid) / "task").iterdir()


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in _tasks(pid):
        with suppress(FileNotFoundError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def _command(pid: int) -> bytes:
    with suppress(FileNotFoundError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""


def cpu_and_wait(pid: int) -> tuple[float, float]:
    """Seconds that the threads alive have run, and waited for a core; schedstat is exact to the nanosecond."""
    ran = waited = 0
    for task in _tasks(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (task / "schedstat").read_text().split()
            ran, waited = ran + int(fields[0]), waited + int(fields[1])
    return ran / 1e9, waited / 1e9


def resident_bytes(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(r"VmRSS:\s+(\d+) kB", (_PROC / str(pid) / "status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def wakeups(pid: int) -> int:
    total = 0
    for task in _tasks(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            switches = re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())
            total += sum(map(int, switches))
    return total


@contextmanager
def started(command: Sequence[str], *, verbose: bool = False) -> Generator[ServerProcess]:
    """A server that says `… http://HOST:PORT` in its first line; ended with SIGTERM, and after a while for good."""
    stderr = None if verbose else subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        match = re.search(r"http://\S+:(\d+)$", line.strip())
        if match is None:
            raise RuntimeError(f"the server {' '.join(command)} did not start: {line!r}")
        yield ServerProcess(process.pid, int(match[1]))
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
