"""Messages written past the socket's task: every stream whole and in order, whatever the kernel takes at once."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import trio
from trio.testing import wait_all_tasks_blocked
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, TextMessage

from triolet.actors.gateway.outbox import Outbox
from triolet.protocol.events import Finished, Token, Usage
from triolet.protocol.stream_frames import FinishedFrame, ToClient, TokenFrame
from triolet.web.asgi import Application
from triolet.web.exchange import Wire, Written
from triolet.web.generation.posting import send_answer
from triolet.web.routes.frames import Frames
from triolet.web.routes.stream_outgoing import Outgoing
from triolet.web.transport.transport import serve

SOON = 20.0
NAMES = ("a", "b", "c")
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_FRAME = msgspec.json.Decoder[ToClient](ToClient)


class Streams:
    """A conversation: three outboxes behind one socket of a real server. `written` is what went past its task."""

    tenant: str | None = ""

    def __init__(self, falsify: Callable[[bytes], bytes] = lambda data: data) -> None:
        self.outboxes = {name: Outbox(name, lambda taken: None) for name in NAMES}
        self.falsify = falsify
        self.written: list[Written] = []
        self.tasks = 0  # times that a stream had to wait for the socket's task

    def app(self) -> Application:
        settings = SimpleNamespace(access_log=False)
        engine: Any = SimpleNamespace(gateway=None, settings=settings)  # no route of it starts a generation
        app = Application("streams", engine, Counter(), max_body_bytes=0)
        app.socket_route("/", lambda handshake: self)
        return app

    def begin(self, wire: Wire) -> None:
        wire.nursery.start_soon(self._converse, wire)

    async def receive(self, message: str | bytes) -> None:
        raise AssertionError(message)

    def end(self) -> None:
        pass

    async def _converse(self, wire: Wire) -> None:
        outgoing = Outgoing(SpiedWire(wire, self))
        async with trio.open_nursery() as nursery:
            for name, outbox in self.outboxes.items():
                nursery.start_soon(self._stream, outbox, Frames(name, 1), outgoing)
        wire.close(1000)

    async def _stream(self, outbox: Outbox, frames: Frames, outgoing: Outgoing) -> None:
        def post(frame: bytes) -> trio.Event | None:
            unsent = outgoing.post(frame)
            self.tasks += unsent is not None
            return unsent

        await send_answer(outbox, frames, post, lambda: None)

    async def step(self, text: str) -> None:
        """One token for each stream, as a step of the engine brings them."""
        await wait_all_tasks_blocked()
        for name, outbox in self.outboxes.items():
            outbox.put(Token(id=name, index=0, text=name + text, tokens=1))
        for outbox in self.outboxes.values():
            outbox.flush()

    async def finish(self) -> None:
        await wait_all_tasks_blocked()
        for name, outbox in self.outboxes.items():
            usage = Usage(prompt_tokens=1, completion_tokens=1)
            outbox.put(Finished(id=name, reason="length", usage=usage))
            outbox.flush()


class SpiedWire:
    def __init__(self, wire: Wire, streams: Streams) -> None:
        self.nursery, self.finish, self.send, self.close = wire.nursery, wire.finish, wire.send, wire.close
        self._wire, self._streams = wire, streams

    def write_now(self, text: bytes) -> Written:
        self._streams.written.append(self._wire.write_now(self._streams.falsify(text)))
        return self._streams.written[-1]


async def messages(streams: Streams, texts: list[str], *, slow: bool = False) -> list[str]:
    """Serve, generate `texts`, read to the end: all messages, in the order in which they came."""
    received: list[str] = []
    protocol = Connection(ConnectionType.CLIENT)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        start = partial(serve, streams.app(), host="127.0.0.1", port=0, drain_timeout=5.0, shutdown_trigger=stop.wait)
        urls = await nursery.start(start)
        client = await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))
        with trio.fail_after(SOON):
            await client.send_all(HANDSHAKE)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += await client.receive_some()
            protocol.receive_data(answer.partition(b"\r\n\r\n")[2])

            async def read() -> None:
                text = ""
                while True:
                    for event in protocol.events():
                        if isinstance(event, TextMessage):
                            text += event.data
                            if event.message_finished:
                                received.append(text)
                                text = ""
                        elif isinstance(event, CloseConnection):
                            return
                    protocol.receive_data(await client.receive_some())

            async with trio.open_nursery() as reading:
                if not slow:
                    reading.start_soon(read)
                for text in texts:
                    await streams.step(text)
                if slow:
                    reading.start_soon(read)
                await streams.finish()
            await client.aclose()
            stop.set()
    return received


def check(received: list[str], texts: list[str]) -> None:
    """Each stream's messages are whole, numbered, in order, and say what was generated."""
    for name in NAMES:
        frames = [_FRAME.decode(message) for message in received if f'"id":"{name}"' in message[:40]]
        assert [frame.seq for frame in frames if isinstance(frame, TokenFrame | FinishedFrame)] == [*range(len(frames))]
        said = "".join(frame.text for frame in frames if isinstance(frame, TokenFrame))
        assert said == "".join(name + text for text in texts)
        assert isinstance(frames[-1], FinishedFrame)


async def test_an_unloaded_stream_gets_every_token_in_a_message_of_its_own() -> None:
    streams = Streams()
    texts = [f"{number} " for number in range(20)]
    received = await messages(streams, texts)
    check(received, texts)
    assert streams.written == ["all"] * (len(texts) + 1) * len(NAMES)
    assert len(received) == len(streams.written)
    assert not streams.tasks


async def test_what_the_kernel_does_not_take_comes_by_the_sockets_task() -> None:
    """Texts larger than the socket's buffers, while nobody reads: a part is taken, then nothing of any stream."""
    streams = Streams()
    texts = [f"{number:07}," * 50_000 for number in range(12)]
    check(await messages(streams, texts, slow=True), texts)
    assert "part" in streams.written
    assert streams.tasks


async def test_a_message_that_is_changed_on_its_way_is_noticed() -> None:
    texts = ["x", "y"]
    received = await messages(Streams(lambda data: data.replace(b"bx", b"by")), texts)
    try:
        check(received, texts)
    except AssertionError:
        return
    raise RuntimeError("the check passed over a changed text")
