"""A sender that never waits: everything arrives in order, and a peer that does not read is overdue, not waited for."""

import socket
from collections.abc import AsyncGenerator
from typing import cast

import msgspec
import pytest
import trio

from triolet.actors.fronts.post import Post
from triolet.actors.supervisor.link import Link
from triolet.protocol.fronts import Answer, FromFront
from triolet.protocol.steps import Pong

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
    post, link = Post(ours), Link(theirs, DECODER)
    sent = [Answer(number=number, body=bytes(1 + number * 9000)) for number in range(80)]  # 28 MB: far beyond a socket
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post.run)
            for message in sent[:60]:
                post.send_nowait(message)
            received = [await link.receive() for _ in range(40)]
            for message in sent[60:]:  # while the backlog is on its way
                post.send_nowait(message)
            received += [await link.receive() for _ in range(40)]
            await post.wait_sent()
            nursery.cancel_scope.cancel()
    assert received == sent
    assert not post.overdue


async def test_a_small_message_is_there_without_a_turn_of_the_loop(pair: Pair) -> None:
    ours, theirs = pair
    Post(ours).send_nowait(Pong())
    assert await Link(theirs, DECODER).receive() == Pong()


async def test_nothing_follows_a_message_that_was_not_kept(pair: Pair) -> None:
    """Whoever reads again after that would take what follows for something else."""
    ours, theirs = pair
    post, link = Post(ours, max_backlog=1 << 20), Link(theirs, DECODER)
    number = 0
    while not post.overdue:
        post.send_nowait(Answer(number=number, body=bytes(100_000)))
        number += 1
    post.send_nowait(Answer(number=number, body=b"not kept"))
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post.run)
            received = [await link.receive() for _ in range(number)]
            await post.wait_sent()
            post.send_nowait(Pong())
            await post.wait_sent()
            nursery.cancel_scope.cancel()
    assert [cast("Answer", message).number for message in received] == list(range(number))
    assert post.overdue
    assert not link._incoming
    with pytest.raises(BlockingIOError):
        theirs.socket._sock.recv(1)


async def test_a_peer_that_does_not_read_is_overdue_and_costs_no_more_than_the_bound(pair: Pair) -> None:
    ours, _ = pair
    post = Post(ours, max_backlog=1 << 20)
    kept: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(post.run)
        for number in range(200):
            post.send_nowait(Answer(number=number, body=bytes(100_000)))
            kept.append(len(post._backlog))
            await trio.lowlevel.checkpoint()
        assert post.overdue
        assert max(kept) <= (1 << 20) + 100_100  # the message that passed the bound is the last one kept
        nursery.cancel_scope.cancel()


async def test_the_peer_s_end_is_seen_by_the_task_that_sends(pair: Pair) -> None:
    ours, theirs = pair
    post = Post(ours)
    theirs.socket.close()
    with trio.fail_after(20), pytest.RaisesGroup(trio.BrokenResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post.run)
            post.send_nowait(Pong())
