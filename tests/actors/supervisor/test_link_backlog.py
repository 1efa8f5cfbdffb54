"""A sender that never waits: everything arrives in order, and a peer that does not read is overdue, not waited for."""

import socket
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.actors.supervisor.link import Link
from triolet.protocol.fronts import FromFront, InquiryAnswer, ToFront
from triolet.protocol.steps import Pong

TO_FRONT = msgspec.msgpack.Decoder[ToFront](ToFront)  # nothing is received with it
DECODER = msgspec.msgpack.Decoder[FromFront](FromFront)
Pair = tuple[trio.SocketStream, trio.SocketStream]


@pytest.fixture
async def pair() -> AsyncGenerator[Pair]:
    sockets = socket.socketpair()
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(sock)) for sock in sockets)
    yield ours, theirs
    ours.socket.close()
    theirs.socket.close()


async def test_messages_arrive_in_order_whatever_the_socket_takes_at_once(pair: Pair) -> None:
    ours, theirs = pair
    sender, link = Link(ours, TO_FRONT), Link(theirs, DECODER)
    sent = [
        InquiryAnswer(number=number, body=bytes(1 + number * 9000)) for number in range(80)
    ]  # 28 MB: far beyond a socket
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.keep_sending)
            for message in sent[:60]:
                sender.send_nowait(message)
            received = [await link.receive() for _ in range(40)]
            for message in sent[60:]:  # while the backlog is on its way
                sender.send_nowait(message)
            received += [await link.receive() for _ in range(40)]
            nursery.cancel_scope.cancel()
    assert received == sent
    assert not sender.overdue


async def test_a_small_message_is_there_without_a_turn_of_the_loop(pair: Pair) -> None:
    ours, theirs = pair
    Link(ours, TO_FRONT).send_nowait(Pong())
    assert await Link(theirs, DECODER).receive() == Pong()


async def test_nothing_follows_a_message_that_was_not_kept(pair: Pair) -> None:
    """Whoever reads again after that would take what follows for something else."""
    ours, theirs = pair
    sender, link = Link(ours, TO_FRONT, max_backlog=1 << 20), Link(theirs, DECODER)
    number = 0
    while not sender.overdue:
        sender.send_nowait(InquiryAnswer(number=number, body=bytes(100_000)))
        number += 1
    sender.send_nowait(InquiryAnswer(number=number, body=b"not kept"))
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.keep_sending)
            received = [await link.receive() for _ in range(number)]
            sender.send_nowait(Pong())
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [cast("InquiryAnswer", message).number for message in received] == list(range(number))
    assert sender.overdue
    with pytest.raises(trio.BrokenResourceError):
        await sender.send(Pong())
    assert not link._incoming
    with pytest.raises(BlockingIOError):
        cast("Any", theirs.socket)._sock.recv(1)


async def test_a_peer_that_does_not_read_is_overdue_and_costs_no_more_than_the_bound(pair: Pair) -> None:
    ours, _ = pair
    sender = Link(ours, TO_FRONT, max_backlog=1 << 20)
    kept: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.keep_sending)
        for number in range(200):
            sender.send_nowait(InquiryAnswer(number=number, body=bytes(100_000)))
            kept.append(len(sender._backlog))
            await trio.lowlevel.checkpoint()
        assert sender.overdue
        assert max(kept) <= (1 << 20) + 100_100  # the message that passed the bound is the last one kept
        nursery.cancel_scope.cancel()


async def test_the_peer_s_end_is_seen_by_the_task_that_sends(pair: Pair) -> None:
    ours, theirs = pair
    sender = Link(ours, TO_FRONT)
    theirs.socket.close()
    with trio.fail_after(20), pytest.RaisesGroup(trio.BrokenResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.keep_sending)
            sender.send_nowait(Pong())
