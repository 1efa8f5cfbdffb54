"""One server process after another, without servers: whose turn it is, who is waited for, and what a note says."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from msgspec import structs
from trio.testing import wait_all_tasks_blocked

from triolet.cli.inheritance import READY, Inheritance
from triolet.cli.serving import own_sockets
from triolet.cli.several import dealt
from triolet.cli.succession import GO, NotFollowed, Succession
from triolet.cli.upgrade_note import BEGUN, DONE, FAILED, SUFFIX, UpgradeNotes, told
from triolet.protocol.settings import EngineSettings, ServeSettings
from triolet.web.transport.listening import made_unix_socket

SETTINGS = ServeSettings(engine=EngineSettings(model=""))
PROGRAM = """
import ctypes, os, signal, sys
from triolet.cli import waiter

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
signal.pthread_sigmask(signal.SIG_BLOCK, waiter.SIGNALS)
heirs, announced = os.pipe2(os.O_NONBLOCK)
told = {signal.SIGUSR1}

def start(server):
    if pid := os.fork():
        return pid
    server()
    os._exit(7)

def last():
    print("ready", flush=True)
    signal.sigwait(told)
    ENDING

def first():  # its status is not that of the line
    os.write(announced, b"%d\\n" % start(last))
    if LATE:
        signal.sigwait(told)
    os._exit(3)

os._exit(waiter.wait_for(start(first), heirs))
"""


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("ending", "status"), [("pass", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9)])
def test_the_waiter_tells_the_whole_line_to_end_and_ends_as_the_last_one_does(
    late: bool, ending: str, status: int
) -> None:
    program = PROGRAM.replace("LATE", str(late)).replace("ENDING", ending)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        try:
            assert process.wait(30) == status
        finally:
            process.kill()


@pytest.mark.filterwarnings("ignore:unclosed <socket")  # a process's link ends with it
async def test_what_one_process_of_a_line_runs_at_a_time_waits_for_its_turn_and_ends_with_it() -> None:
    done: list[str] = []
    ours, theirs = socket.socketpair()
    heirs = socket.socketpair()
    with ours, theirs, heirs[0], heirs[1], trio.fail_after(10):
        inherited = Inheritance(address="", sockets=(), link=theirs.detach(), heirs=heirs[0].fileno())
        line = Succession(SETTINGS, inherited)

        async def work() -> None:
            done.append("begun")
            try:
                await trio.sleep_forever()
            finally:
                done.append("over")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.in_turn, work)
            nursery.start_soon(line.take_turn)
            await wait_all_tasks_blocked()
            assert (done, ours.recv(100)) == ([], READY)
            ours.send(GO)  # the process before accepts no more
            await line.begun.wait()
            await wait_all_tasks_blocked()
            assert done == ["begun"]
            with pytest.raises(NotFollowed, match="still finishes its answers"):
                await line.follow(lambda: False, lambda what, text: None)
            line.over.set()
        assert done == ["begun", "over"]


async def test_who_fails_before_its_turn_leaves_the_sockets_file_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    settings = structs.replace(SETTINGS, uds=str(path))
    with made_unix_socket(str(path)) as sock:
        inherited = Inheritance(address="", sockets=((sock.dup().detach(),),), link=-1, heirs=-1)
        follows = Succession(settings, inherited)
        async with own_sockets(settings, follows):
            pass  # its model does not load
        assert path.is_socket()
        follows.begun.set()
        async with own_sockets(settings, follows):
            pass  # it has served, and ends
        assert not path.exists()
    for each in follows.sockets:
        each[0].close()


def test_sockets_are_dealt_to_at_most_so_many_processes() -> None:
    with ExitStack() as stack:
        made = [[stack.enter_context(socket.socket())] for _ in range(3)]
        (a,), (b,), (c,) = made
        assert dealt(made, 2) == [[a, c], [b]]
        assert dealt(made, 5) == [[a], [b], [c]]
        assert dealt([], 5) == []


def test_a_note_tells_of_the_first_attempt_that_it_names(tmp_path: Path) -> None:
    notes = UpgradeNotes(tmp_path / "1.stacks")
    note = (tmp_path / "1.stacks").with_suffix(SUFFIX)
    notes.attempt()(FAILED, "nobody asked")  # makes no file
    assert not note.exists()
    note.touch()
    first, second = notes.attempt(), notes.attempt()
    first(BEGUN, "one")
    second(FAILED, "another\none runs")
    first(DONE, "one serves")
    assert list(told(note.read_bytes().splitlines())) == [(BEGUN, "one"), (DONE, "one serves")]
