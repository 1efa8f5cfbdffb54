"""`triolet upgrade`: a new server takes over from a running one, and no answer breaks."""

import fcntl
import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import click

from . import waiter
from .options import data_option
from .refusals import Refusal
from .upgrade_note import BEGUN, DONE, FAILED, told
from .upgrade_note import SUFFIX as NOTE

_LOOK_SECONDS: Final = 0.1


class RunningServer(NamedTuple):
    """A server's process, and its stack file."""

    pid: int
    stacks: Path


@click.command()
@data_option
@click.option("--pid", type=click.IntRange(min=1), help="The server's process.  [default: that of the data folder]")
def upgrade(data: str | None, pid: int | None) -> None:
    """Let a new server take over from the one that runs on this machine.

    It has the same command line, in its version of now, and reads the settings file anew. Once its model is loaded
    it takes over the sockets: new requests go to it, and the old server ends when its answers have ended. If it
    does not become ready the old one goes on, and this command says why, with exit code 1.

    \b
    triolet upgrade                 the server of the default data folder
    triolet upgrade --data DIR      the server that was started with --data DIR
    triolet upgrade --pid 4711      one of several
    """
    from ..actors.database import data_folder
    from ..actors.observe.flight_file import FOLDER

    server = server_of(pid) if pid is not None else server_in(data_folder(data) / FOLDER)
    if server is None:
        other = f"one of another user takes `kill -HUP {pid}`, and its log says how it went"
        raise Refusal(f"process {pid} is no Triolet server of this user: take the one that you started; {other}")
    with _note(server) as note:
        os.kill(server.pid, signal.SIGHUP)
        for what, text in told(_lines(note, server.pid)):
            click.echo(text if what != BEGUN else f"The new server is {text}", err=what == FAILED)
            if what == FAILED:
                raise SystemExit(1)
            if what == DONE:
                return


def server_in(folder: Path) -> RunningServer:
    """The one server whose flight recorder is there. Raises Refusal."""
    from ..actors.observe.stack_file import SUFFIX

    found = {
        server.pid: server
        for stacks in folder.glob(f"*{SUFFIX}")
        if (server := server_of(int(stacks.stem.rpartition("-")[2]))) is not None and server.stacks.name == stacks.name
    }
    # A web process, and a server that takes over, is a child of another one.
    first = [server for server in found.values() if _parent(server.pid) not in found]
    if not first:
        raise Refusal(f"no server of this user runs with the data folder {folder.parent}: give --data, or --pid")
    if len(first) > 1:
        numbers = ", ".join(str(server.pid) for server in first)
        raise Refusal(f"several servers run with the data folder {folder.parent}: give --pid with one of {numbers}")
    return first[0]


def server_of(pid: int) -> RunningServer | None:
    """The server that is this process, or that it waits for."""
    from ..actors.observe.stack_file import SUFFIX

    for number in (pid, *_children(pid)):
        with suppress(OSError):
            if Path(f"/proc/{number}").stat().st_uid != os.geteuid():  # root, too, asks as the server's own user
                continue
            for link in Path(f"/proc/{number}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    if (name := os.readlink(link)).endswith(SUFFIX):
                        return RunningServer(number, Path(f"/proc/{number}/root{name}"))
    return None


def _children(pid: int) -> list[int]:
    """Those of a waiter, which are servers."""
    with suppress(OSError):
        if waiter.NAME.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return []
        return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@contextmanager
def _note(server: RunningServer) -> Generator[int]:
    """The file in which the server tells us what it does, which is there meanwhile. Raises Refusal."""
    path = server.stacks.with_suffix(NOTE)
    note = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(note, 0)
    except BlockingIOError:
        os.close(note)
        raise Refusal(f"another `triolet upgrade` of process {server.pid} runs; wait for its end") from None
    try:
        yield note
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(note)


def _lines(note: int, pid: int) -> Iterator[bytes]:
    """What the server says, as it says it. Raises ClickException if it ends."""
    rest, lives = b"", True
    while lives:
        lives = Path(f"/proc/{pid}").exists()
        *lines, rest = (rest + os.read(note, 1 << 16)).split(b"\n")
        yield from lines
        time.sleep(_LOOK_SECONDS)
    raise click.ClickException(f"process {pid} has ended; its log says why")
