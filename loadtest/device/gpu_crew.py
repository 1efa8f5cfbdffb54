"""The suite's worker processes, from the side that starts them: ask, wait so long, kill, start anew. Imports no torch.

A case may hang, end its process or lose the device; none of these touches the process that keeps the findings. What a
case writes goes into folders of that process, which empties them behind a worker: a case that is killed cannot clean
up, and sixteen gigabytes left in /dev/shm are memory that nobody has any more.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from triolet.loadtest.device.gpu_case import HERE, GpuMachine

START_SECONDS = 180.0  # importing torch from a cold disk, and the interpreter's first start
IN_MEMORY = Path("/dev/shm")
SCRATCH = "TRIOLET_SUITE_SCRATCH"  # of a worker's environment: its folders


class WorkerEnded(Exception):
    """The process is gone; the message says how."""


class WorkerRefused(Exception):
    """It cannot work on this machine."""


class TimedOut(WorkerEnded):
    """It was killed for taking too long."""


class Closed(Exception):
    """The run is over: nothing is known of what was asked."""


class Worker:
    """One process at a time, started when it is needed. Used by one thread; another may close it."""

    def __init__(
        self, log: Path, *, dry: bool, environment: dict[str, str], command: list[str] | None = None,
        scratch: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        """`scratch`: folders of this worker alone, which are emptied whenever its process has ended."""
        self._log, self._scratch = log, list(scratch)
        self._command = command or [sys.executable, "-m", f"{HERE}.gpu_worker", *(["--dry-run"] if dry else [])]
        self._environment = environment | {SCRATCH: os.pathsep.join(map(str, self._scratch))}
        self._process: subprocess.Popen[str] | None = None
        self._machine: GpuMachine | None = None
        self._closed = self._greeted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self.end()

    def begin(self) -> subprocess.Popen[str]:
        """Start it without waiting: several begin at the same time."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=self._environment, process_group=0,
            )  # fmt: skip
        self._greeted = False
        return self._process

    def machine(self) -> GpuMachine:
        self._started(START_SECONDS)
        assert self._machine is not None
        return self._machine

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:  # Any: JSON
        """Its answer, in so many seconds, starting included where it must start.

        Raises TimedOut or WorkerEnded; the next question then starts a new process. Or Closed.
        """
        began = time.monotonic()
        process = self._started(min(START_SECONDS, seconds))
        answer = self._exchange(process, question, seconds - (time.monotonic() - began))
        if answer.get("lost"):
            self.end()
        return answer

    def end(self) -> None:
        """Kill it and whatever it started."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
            empty(self._scratch)

    def _started(self, seconds: float) -> subprocess.Popen[str]:
        if self._closed:
            raise Closed("the run is over")
        process = self._process or self.begin()
        if not self._greeted:
            hello = self._exchange(process, None, seconds)
            if "refused" in hello:
                self.end()
                raise WorkerRefused(hello["refused"])
            self._machine, self._greeted = GpuMachine.from_json(hello["machine"]), True
        return process

    def _exchange(
        self, process: subprocess.Popen[str], question: dict[str, Any] | None, seconds: float
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(max(0.0, seconds), stop)
        timer.daemon = True
        timer.start()
        try:
            if question is not None:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except (BrokenPipeError, ValueError):  # it has ended, or another thread has closed its pipes
            line = ""
        finally:
            timer.cancel()
        if line.endswith("\n"):
            return dict(json.loads(line))
        status = process.wait()
        if self._closed:
            raise Closed("the run is over")
        self.end()
        if late.is_set():
            raise TimedOut(f"did not {'start' if question is None else 'end'} within {seconds:.0f} s")
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise WorkerEnded(f"the process ended in it: {how}")


def _kill(process: subprocess.Popen[str]) -> None:
    """With everything that it started: they are one process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def scratch_folders(prefix: str) -> Generator[list[Path]]:
    """One in memory, where there is such a place, and one among the temporary files; gone with the block."""
    places = [place for place in (IN_MEMORY, Path(tempfile.gettempdir())) if os.access(place, os.W_OK)]
    with ExitStack() as stack:
        made = [tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) for place in places]
        yield [Path(stack.enter_context(one)) for one in made]


def given_folders() -> list[Path]:
    """In a worker: what it was passed. Elsewhere (a case run by itself): the places as they are."""
    given = os.environ.get(SCRATCH)
    return (
        [IN_MEMORY, Path(tempfile.gettempdir())] if given is None else [Path(name) for name in given.split(os.pathsep)]
    )


def empty(folders: list[Path]) -> None:
    """What is still in use by somebody goes when they end."""
    for folder in folders:
        for left in folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
