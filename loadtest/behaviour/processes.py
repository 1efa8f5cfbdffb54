"""The server as processes: started from a command, found by its pid, looked at from outside through /proc."""

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from ..web.process import descendants, resident_bytes
from .gauge import get

READY_SECONDS: Final = 180.0  # a large model loads, a compiler runs
_SLOWEST_EXIT: Final = 60.0


class ServerProcess:
    """A server's root process and whatever it started. `process` is there if we started it."""

    def __init__(self, pid: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self.process = process

    def resident_bytes(self) -> int:
        return sum(map(resident_bytes, (self.pid, *descendants(self.pid))))

    def largest_child(self) -> int | None:
        """The process that holds the model, if it is one of its own."""
        return max(descendants(self.pid), key=resident_bytes, default=None)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    async def wait(self, seconds: float = _SLOWEST_EXIT) -> int | None:
        """The exit code; None if it is still there after so long. Only of a process that we started."""
        assert self.process is not None
        with trio.move_on_after(seconds):
            while self.process.poll() is None:  # noqa: ASYNC110 - a process gives no event that every system has
                await trio.sleep(0.01)
        return self.process.returncode


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def started(command: str, port: int, log: Path) -> Generator[ServerProcess]:
    """The command with `{port}` filled in; it and all its children are ended with the block."""
    words = [word.replace("{port}", str(port)) for word in shlex.split(command)]
    with log.open("ab") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    children: list[int] = []
    try:
        yield ServerProcess(process.pid, process)
    finally:
        children = descendants(process.pid)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


async def until_ready(url: str, key: str | None, process: ServerProcess | None) -> str:
    """Wait until the server lists its models; the first one's name."""
    why = ""
    with trio.move_on_after(READY_SECONDS):
        while True:
            if process is not None and process.process is not None and process.process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.process.returncode} before it was ready")
            try:
                return await trio.to_thread.run_sync(_first_model, url, key)
            except (OSError, ValueError) as error:
                why = str(error)
            await trio.sleep(0.1)
    raise RuntimeError(f"the server at {url} was not ready within {READY_SECONDS:g} s: {why}")


def _first_model(url: str, key: str | None) -> str:
    models = json.loads(get(f"{url}/v1/models", key))["data"]
    return str(models[0]["id"]) if models else ""
