"""The worker's end of the link against the front's frames: any pieces, the end, what is no frame, several writers."""

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from triolet.actors.executor.blocking_link import BlockingLink
from triolet.actors.supervisor.frame import HEADER, MAX_FRAME, FrameWriter, LinkError
from triolet.protocol.steps import Chunk, FromWorker, Ping, Pong, Step, StepDone, ToWorker

TO_WORKER = msgspec.msgpack.Decoder[ToWorker](ToWorker)
STEP = Step(step=7, chunks=(Chunk(sequence=1, start=0, count=3, blocks=(4,), sample=True),), dropped=(9,))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_messages_come_whole_from_any_pieces(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    ours, theirs = pair
    writer = FrameWriter()
    data = b"".join(bytes(writer.write(message)) for message in (STEP, Ping(), STEP))
    for place in range(0, len(data), size):
        ours.sendall(data[place : place + size])
    link = BlockingLink(theirs, TO_WORKER)
    assert [link.receive() for _ in range(3)] == [STEP, Ping(), STEP]


def test_whether_something_has_come_can_be_asked(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    link = BlockingLink(theirs, TO_WORKER)
    assert not link.wait(0)
    ours.sendall(bytes(FrameWriter().write(Ping())) * 2)
    assert link.wait(0)
    link.receive()
    assert link.wait(0)  # it was read with the first
    link.receive()
    assert not link.wait(0)
    ours.close()
    assert link.wait(0)  # the end


@pytest.mark.parametrize("kept", [0, 2, HEADER + 3])
def test_a_peer_that_is_gone_is_the_end(pair: tuple[socket.socket, socket.socket], kept: int) -> None:
    ours, theirs = pair
    ours.sendall(bytes(FrameWriter().write(STEP))[:kept])
    ours.close()
    link = BlockingLink(theirs, TO_WORKER)
    with pytest.raises(EOFError):
        link.receive()
    with pytest.raises(OSError):
        link.send(Pong())


@pytest.mark.parametrize("data", [(MAX_FRAME + 1).to_bytes(HEADER, "big"), (1).to_bytes(HEADER, "big") + b"\xc1"])
def test_what_is_no_message_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    ours, theirs = pair
    ours.sendall(data)
    with pytest.raises(LinkError):
        BlockingLink(theirs, TO_WORKER).receive()


def test_messages_of_several_threads_do_not_mix(pair: tuple[socket.socket, socket.socket]) -> None:
    """Frames larger than the socket's buffer, so that every write is cut."""
    ours, theirs = pair
    link = BlockingLink(theirs, TO_WORKER)
    done = StepDone(step=1, rows=(), duration=0.0, model_duration=0.0)
    large = [msgspec.structs.replace(done, step=number) for number in range(50)]

    def write(messages: list[StepDone]) -> None:
        for message in messages:
            link.send(message)
            link.send(Pong())

    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    threads = [threading.Thread(target=write, args=(large[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    reader = BlockingLink(ours, msgspec.msgpack.Decoder[FromWorker](FromWorker))
    received = [reader.receive() for _ in range(100)]
    for thread in threads:
        thread.join()
    assert sorted(message.step for message in received if isinstance(message, StepDone)) == list(range(50))
    assert sum(isinstance(message, Pong) for message in received) == 50
