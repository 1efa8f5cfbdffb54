"""The loop that reads many sockets, on real ones: what came, in order, to whom it belongs; errors and leaving."""

import socket
from contextlib import ExitStack

import pytest
import trio

from triolet.loadtest.serve.intake import Intake


def _pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    stack.enter_context(theirs)
    ours.setblocking(False)
    return ours, theirs


class Taken:
    """What one socket brought, until `end` came."""

    def __init__(self, end: bytes) -> None:
        self.data = b""
        self._end = end

    def __call__(self, data: bytes) -> bool:
        if data == b"raise":
            raise ValueError("asked to")
        self.data += data
        return self.data.endswith(self._end) or not data


async def test_every_socket_s_bytes_reach_whom_they_are_for(nursery: trio.Nursery) -> None:
    intake = Intake()
    nursery.start_soon(intake.run)
    with ExitStack() as stack, trio.fail_after(30):
        pairs = [_pair(stack) for _ in range(600)]  # more than are read in one go
        taken = [Taken(b"end") for _ in pairs]
        async with trio.open_nursery() as followers:
            for (ours, _), take in zip(pairs, taken, strict=True):
                followers.start_soon(intake.follow, ours, take)
            for part in ("first ", "second ", "end"):
                for number, (_, theirs) in enumerate(pairs):
                    theirs.send(f"{number}{part}".encode())
                await trio.lowlevel.checkpoint()
    assert [take.data for take in taken] == [f"{n}first {n}second {n}end".encode() for n in range(600)]


async def test_a_socket_can_be_followed_again(nursery: trio.Nursery) -> None:
    intake = Intake()
    nursery.start_soon(intake.run)
    with ExitStack() as stack, trio.fail_after(30):
        ours, theirs = _pair(stack)
        for _ in range(3):
            take = Taken(b"end")
            theirs.send(b"an end")
            await intake.follow(ours, take)
            assert take.data == b"an end"


async def test_the_end_of_a_connection_is_told(nursery: trio.Nursery) -> None:
    intake = Intake()
    nursery.start_soon(intake.run)
    with ExitStack() as stack, trio.fail_after(30):
        ours, theirs = _pair(stack)
        take = Taken(b"never")
        theirs.send(b"half")
        theirs.close()
        await intake.follow(ours, take)
        assert take.data == b"half"


async def test_what_the_reader_raises_ends_its_own_stream_alone(nursery: trio.Nursery) -> None:
    intake = Intake()
    nursery.start_soon(intake.run)
    with ExitStack() as stack, trio.fail_after(30):
        ours, theirs = _pair(stack)
        other, their_other = _pair(stack)
        theirs.send(b"raise")
        with pytest.raises(ValueError, match="asked to"):
            await intake.follow(ours, Taken(b""))
        their_other.send(b"end")
        take = Taken(b"end")
        await intake.follow(other, take)
        assert take.data == b"end"


async def test_who_leaves_is_forgotten(nursery: trio.Nursery) -> None:
    intake = Intake()
    nursery.start_soon(intake.run)
    with ExitStack() as stack:
        ours, theirs = _pair(stack)
        left = Taken(b"end")
        with trio.CancelScope() as scope:
            scope.cancel()
            await intake.follow(ours, left)
        theirs.send(b"end")
        take = Taken(b"end")
        with trio.fail_after(30):
            await intake.follow(ours, take)
        assert (left.data, take.data) == (b"", b"end")
