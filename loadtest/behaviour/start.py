"""Starts a server from a command line, and waits until one that is running is ready."""

import json
import shlex
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from ..process import ServerProcess, launched
from .gauge import get

READY_SECONDS: Final = 180.0  # a large model loads, a compiler runs


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def started(command: str, port: int, log: Path) -> Generator[ServerProcess]:
    """The command with `{port}` filled in; it and all its children are ended with the block."""
    words = [word.replace("{port}", str(port)) for word in shlex.split(command)]
    with log.open("ab") as output, launched(words, stdout=output, stderr=output) as process:
        yield ServerProcess(process.pid, process, port=port)


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
