"""Starts a server from a command line, or waits until a running one is ready."""

import shlex
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio

from ..client.chunk import listed_models
from ..client.client import HttpClient
from ..client.ending import Fault
from ..process import ServerProcess, launched
from .gauge import get_page

READY_SECONDS: Final = 180.0  # for loading a large model, or compiling


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def started(command: str, port: int, log: Path) -> Generator[ServerProcess]:
    """Run the command with `{port}` filled in; it and all its children end with the block."""
    words = [word.replace("{port}", str(port)) for word in shlex.split(command)]
    with log.open("ab") as output, launched(words, stdout=output, stderr=output) as process:
        yield ServerProcess(process.pid, process, port=port)


async def until_ready(client: HttpClient, key: str | None, process: ServerProcess | None) -> str:
    """Wait until the server lists its models; returns the first one's name. Raises RuntimeError if it never will."""
    why, launched_here = "", process is not None and process.process is not None
    with trio.move_on_after(READY_SECONDS):
        while True:
            if process is not None and process.process is not None and process.process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.process.returncode} before it was ready")
            try:
                return next(iter(listed_models(await get_page(client, "/v1/models", key))), "")
            except (Fault, msgspec.MsgspecError) as error:
                why = str(error)
                if isinstance(error, Fault) and error.outcome == "connect" and not launched_here:
                    raise RuntimeError(f"no server answers at {why}") from error
            await trio.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {READY_SECONDS:g} s: {why}")
