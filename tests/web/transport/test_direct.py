"""Chunks written past the handler: the body a client reads is the same, whatever the kernel takes at once."""

import re
from collections.abc import Callable
from functools import partial

import trio
from quart import request
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioResponse as Response
from trio.testing import wait_all_tasks_blocked

from triolet.actors.gateway.outbox import Outbox
from triolet.protocol.events import Finished, Started, Token, Usage
from triolet.web.asgi import chunk_writer
from triolet.web.exchange import WriteChunk, Written
from triolet.web.generation.event_stream import event_stream
from triolet.web.openai.chunks import Chunks
from triolet.web.openai.dialect import COMPLETIONS, Reply
from triolet.web.transport.transport import serve

SOON = 20.0
REPLY = Reply(dialect=COMPLETIONS, id="cmpl-r", created=0, model="m", choices=1)
END = Finished(id="r", reason="length", usage=Usage(prompt_tokens=1, completion_tokens=1))
KEEP_ALIVE = 3600.0


def token(text: str) -> Token:
    return Token(id="r", index=0, text=text, tokens=1)


class Stream:
    """An outbox behind one route of a real server; `sent` counts what went past the handler."""

    def __init__(self, falsify: Callable[[bytes], bytes] = lambda data: data) -> None:
        self.outbox = Outbox("r", lambda taken: None)
        self.written: list[Written] = []
        self.has_writer = False
        self._falsify = falsify

    def app(self) -> QuartTrio:
        app = QuartTrio("stream")
        app.config.update(RESPONSE_TIMEOUT=None)  # pyright: ignore[reportUnknownMemberType]  # Quart leaves it untyped

        @app.get("/")
        async def stream() -> Response:
            write = chunk_writer(request.scope)
            self.has_writer = write is not None
            spy = partial(self.write, write) if write is not None else None
            first = (Started(id="r", model="m", prompt_tokens=1), token("first "))
            return Response(event_stream(self.outbox, Chunks(REPLY), first, KEEP_ALIVE, spy))

        return app

    def write(self, write: WriteChunk, data: bytes) -> Written:
        self.written.append(write(self._falsify(data)))
        return self.written[-1]

    async def step(self, text: str) -> None:
        await wait_all_tasks_blocked()
        self.outbox.put(token(text))
        self.outbox.flush()

    async def end(self) -> None:
        await wait_all_tasks_blocked()
        self.outbox.put(END)
        self.outbox.flush()


async def read_stream(stream: Stream, texts: list[str], *, slow: bool = False, version: str = "1.1") -> str:
    """Serve, ask, generate `texts`, read everything: the texts of the answer, put together."""
    body = b""
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        start = partial(serve, stream.app(), host="127.0.0.1", port=0, drain_timeout=0.0, shutdown_trigger=stop.wait)
        urls = await nursery.start(start)
        client = await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))
        with trio.fail_after(SOON):
            await client.send_all(f"GET / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            while b"first" not in body:
                body += await client.receive_some()

            async def read() -> None:
                nonlocal body
                async for data in client:
                    body += data

            if not slow:
                nursery.start_soon(read)
            for text in texts:
                await stream.step(text)
            if slow:
                nursery.start_soon(read)
            await stream.end()
            stop.set()
    await client.aclose()
    assert b"data: [DONE]" in body
    if version == "1.1":
        body = unchunked(body)
    return "".join(re.findall(r'"text":"([^"]*)"', body.decode()))


def unchunked(answer: bytes) -> bytes:
    """The body, by the framing's own lengths; fails where they do not fit."""
    rest, body = answer.partition(b"\r\n\r\n")[2], b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n", rest[: length + 20]
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body


async def test_steps_go_straight_to_a_client_that_keeps_up() -> None:
    stream = Stream()
    texts = [f"{number} " for number in range(20)]
    assert await read_stream(stream, texts) == "first " + "".join(texts)
    assert stream.written == ["all"] * 20


async def test_what_the_kernel_does_not_take_comes_by_the_ordinary_way() -> None:
    """Texts larger than the socket's buffers, while nobody reads: a part is taken, then nothing."""
    stream = Stream()
    texts = [f"{number:07}," * 50_000 for number in range(30)]
    assert await read_stream(stream, texts, slow=True) == "first " + "".join(texts)
    assert "part" in stream.written


async def test_a_client_without_chunks_is_served_as_before() -> None:
    stream = Stream()
    assert await read_stream(stream, ["a", "b"], version="1.0") == "first ab"
    assert not stream.has_writer
    assert stream.written == []


async def test_what_is_not_written_at_all_is_yielded_in_order() -> None:
    outbox = Outbox("r", lambda taken: None)
    received: list[bytes] = []

    async def read() -> None:
        stream = event_stream(outbox, Chunks(REPLY), (token("first"),), KEEP_ALIVE, lambda data: "nothing")
        received.extend([data async for data in stream])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for text in "ab":
            await wait_all_tasks_blocked()
            outbox.put(token(text))
            outbox.flush()
            outbox.put(token(text.upper()))  # after the flush that failed: by the reader, behind what it left
            outbox.flush()
        await wait_all_tasks_blocked()
        outbox.put(END)
        outbox.flush()
    assert re.findall(rb'"text":"([^"]*)"', b"".join(received)) == [b"first", b"a", b"A", b"b", b"B", b""]


async def test_a_chunk_that_is_changed_on_its_way_is_noticed() -> None:
    assert await read_stream(Stream(lambda data: data.replace(b"a", b"x")), ["a", "b"]) != "first ab"
