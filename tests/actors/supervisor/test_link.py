"""Frames: whatever the pieces in which the bytes come, and what is no frame of ours."""

from contextlib import suppress

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from triolet.actors.supervisor.link import HEADER, MAX_FRAME, Link, LinkError
from triolet.protocol.steps import Chunk, FromWorker, Ping, Pong, Step, StepDone, ToWorker

TO_WORKER = msgspec.msgpack.Decoder[ToWorker](ToWorker)
FROM_WORKER = msgspec.msgpack.Decoder[FromWorker](FromWorker)
STEP = Step(step=7, chunks=(Chunk(sequence=1, start=0, count=3, blocks=(4,), sample=True),), dropped=(9,))


async def test_messages_come_back_equal_and_in_order() -> None:
    ours, theirs = memory_stream_pair()
    front, worker = Link(ours, FROM_WORKER), Link(theirs, TO_WORKER)
    for message in (STEP, Ping(), STEP):
        await front.send(message)
    assert [await worker.receive() for _ in range(3)] == [STEP, Ping(), STEP]
    done = StepDone(step=7, rows=(), duration=0.5, model_duration=0.25)
    await worker.send(done)
    await worker.send(Pong())
    assert [await front.receive() for _ in range(2)] == [done, Pong()]


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30))
async def test_any_split_of_the_bytes_gives_the_same_messages(cuts: list[int]) -> None:
    frame = msgspec.msgpack.encode(STEP)
    data = (len(frame).to_bytes(HEADER, "big") + frame) * 3
    ours, theirs = memory_stream_pair()
    received: list[ToWorker] = []

    async def read() -> None:
        link = Link(theirs, TO_WORKER)
        with suppress(trio.EndOfChannel):
            while True:
                received.append(await link.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        place = 0
        for cut in cuts:
            await ours.send_all(data[place : place + cut])
            await trio.testing.wait_all_tasks_blocked()
            place += cut
        await ours.send_all(data[place:])
        await ours.aclose()
    assert received == [STEP] * 3


@pytest.mark.parametrize("kept", [0, 2, HEADER, HEADER + 3])
async def test_a_peer_that_is_gone_is_the_end_also_in_the_middle_of_a_frame(kept: int) -> None:
    ours, theirs = memory_stream_pair()
    frame = msgspec.msgpack.encode(STEP)
    await ours.send_all((len(frame).to_bytes(HEADER, "big") + frame)[:kept] or b"")
    await ours.aclose()
    link = Link(theirs, TO_WORKER)
    with pytest.raises(trio.EndOfChannel):
        await link.receive()
    with pytest.raises(trio.BrokenResourceError):
        await link.send(STEP)


@pytest.mark.parametrize(
    "data",
    [
        (MAX_FRAME + 1).to_bytes(HEADER, "big"),
        b"HTTP/1.1 200 OK",  # its first four bytes are a length of over a gigabyte
        (3).to_bytes(HEADER, "big") + b"\xc1\xc1\xc1",
        (2).to_bytes(HEADER, "big") + msgspec.msgpack.encode([1]),
        (16).to_bytes(HEADER, "big") + msgspec.msgpack.encode({"type": "gremlins"}).ljust(16, b"\xc0"),
        (3).to_bytes(HEADER, "big") + b"\x81\xa1\xff",  # no UTF-8
        (5000).to_bytes(HEADER, "big") + b"\x91" * 5000,  # nested too deeply
    ],
)
async def test_what_is_no_message_is_refused_without_reading_on(data: bytes) -> None:
    ours, theirs = memory_stream_pair()
    await ours.send_all(data)
    with pytest.raises(LinkError):
        await Link(theirs, TO_WORKER).receive()


async def test_a_message_beyond_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = memory_stream_pair()
    monkeypatch.setattr("triolet.actors.supervisor.frame.MAX_FRAME", 8)
    with pytest.raises(LinkError, match="exceeds"):
        await Link(ours, FROM_WORKER).send(STEP)


async def test_several_tasks_send_whole_frames_to_a_peer_that_reads_slowly() -> None:
    ours, theirs = trio.socket.socketpair()
    front, worker = Link(trio.SocketStream(ours), FROM_WORKER), Link(trio.SocketStream(theirs), TO_WORKER)
    large = Step(step=8, chunks=(), dropped=tuple(range(1_000_000)))  # more than a socket's buffers hold
    received: list[ToWorker] = []
    async with trio.open_nursery() as nursery:
        for message in (large, Ping(), STEP):
            nursery.start_soon(front.send, message)
            await trio.testing.wait_all_tasks_blocked()
        while len(received) < 3:
            received.append(await worker.receive())
    assert received == [large, Ping(), STEP]
    await front.aclose()
    with pytest.raises(trio.EndOfChannel):
        await worker.receive()
    await worker.aclose()
