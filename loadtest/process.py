"""Servers as processes: run for the length of a block, and measured from outside with Linux's accounting."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

import trio

TRIOLET: Final = str(Path(sys.executable).with_name("triolet"))
EXIT_SECONDS: Final = 20.0  # after SIGTERM; a server that drains has ended by then
LAST_WORDS: Final = 800  # characters of what a failed process wrote
_PROC: Final = Path("/proc")
_WORKER: Final = re.compile(rb"\btriolet\.[\w.]*worker\b")  # `python -m triolet.….worker`, the scripted one too


class CpuTime(NamedTuple):
    """CPU seconds so far. `waited`: ready to run while others had the core, the sign of a busy machine."""

    server: float  # without the worker
    worker: float
    waited: float  # of the server


class ServerProcess:
    """A server's first process and all that it started. `process` is set if we started it."""

    def __init__(self, pid: int, process: "subprocess.Popen[bytes] | None" = None, *, port: int = 0) -> None:
        self.pid = pid
        self.port = port
        self.process = process
        self._workers = [child for child in descendants(pid) if _WORKER.search(_command_of(child))]
        self._fronts = [pid, *(child for child in descendants(pid) if child not in self._workers)]

    def cpu_time(self) -> CpuTime:
        ran, waited = zip(*map(cpu_and_wait, self._fronts), strict=True)
        return CpuTime(sum(ran), sum(cpu_and_wait(pid)[0] for pid in self._workers), sum(waited))

    def front_bytes(self) -> int:
        """Resident memory of the processes that existed at first, without the worker's."""
        return sum(map(resident_bytes, self._fronts))

    def wakeups(self) -> int:
        """How often a thread, not the worker's, has slept and run again, or was preempted, so far."""
        return sum(map(wakeups, self._fronts))

    def resident_bytes(self) -> int:
        """Resident memory of all its processes now."""
        return sum(map(resident_bytes, (self.pid, *descendants(self.pid))))

    def largest_child(self) -> int | None:
        """The process that holds the model, if it is one of its own."""
        return max(descendants(self.pid), key=resident_bytes, default=None)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    async def wait(self, seconds: float) -> int | None:
        """The exit code; None if it still runs after this time. Only for a process that we started."""
        assert self.process is not None
        with trio.move_on_after(seconds):
            while self.process.poll() is None:  # noqa: ASYNC110 - a process gives no event that every system has
                await trio.sleep(0.01)
        return self.process.returncode


@contextmanager
def launched(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = subprocess.DEVNULL,
) -> Generator["subprocess.Popen[bytes]"]:
    """A process for the length of the block. Then it and all that it started are ended."""
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        children = descendants(process.pid)
        process.terminate()
        try:
            process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def serving(command: Sequence[str], errors: IO[bytes] | None = None) -> Generator[ServerProcess]:
    """A server on this machine that is ready once it has printed a line ending in `http://HOST:PORT`.

    `errors`: a file for its standard error; its end is reported if the server does not start.
    """
    with launched(command, stdout=subprocess.PIPE, stderr=errors or subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
        match = re.search(r"http://\S+:(\d+)$", line)
        if match is None:
            raise RuntimeError(f"{' '.join(command)} did not start: {line!r}{last_words(errors)}")
        yield ServerProcess(process.pid, process, port=int(match[1]))


def last_words(errors: IO[bytes] | None) -> str:
    """The end of what a process wrote to this file, on a line of its own."""
    if errors is None:
        return ""
    errors.seek(0)
    return "\n" + errors.read()[-LAST_WORDS:].decode(errors="replace").strip()


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in _tasks(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def cpu_and_wait(pid: int) -> tuple[float, float]:
    """Seconds that the living threads ran, and waited for a core; schedstat is exact to the nanosecond."""
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


def _tasks(pid: int) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (_PROC / str(pid) / "task").iterdir()


def _command_of(pid: int) -> bytes:
    with suppress(FileNotFoundError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""
