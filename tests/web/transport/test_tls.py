"""TLS: HTTP/1.1, HTTP/2 and their streams inside it, handshakes that hold nobody up, and certificates that change."""

import logging
import shutil
import ssl
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import h2.events
import pytest
import trio
from quart import request
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioResponse as Response
from trio.testing import wait_all_tasks_blocked

from triolet.actors.gateway.outbox import Outbox
from triolet.protocol.events import Finished, Started, Token, Usage
from triolet.web.asgi import chunk_writer
from triolet.web.exchange import Written
from triolet.web.generation.event_stream import event_stream
from triolet.web.openai.chunks import Chunks
from triolet.web.openai.dialect import COMPLETIONS, Reply
from triolet.web.transport import receiving as guard_receiving
from triolet.web.transport.http2 import HIGH_WATER
from triolet.web.transport.tls import CertificateError, Certificates, TlsSession, load_context
from triolet.web.transport.transport import serve

from ...conftest import Certificate, MakeCertificate
from ..conftest import CANARY_LINES, CANARY_TEXT, FLOOD_CHUNK, ReadToEnd, Served, StartServer
from .test_hostile import HTTP2Client

SOON = 20.0


@pytest.fixture
def certificate(make_certificate: MakeCertificate) -> Certificate:
    return make_certificate()


def client_context(certificate: Certificate, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate.certfile)
    context.set_alpn_protocols(list(protocols))
    return context


async def connect(
    served: Served, certificate: Certificate, *protocols: str, receive_buffer: int | None = None
) -> trio.SSLStream[trio.SocketStream]:
    """A verified TLS connection. It insists on being told of the end (no `https_compatible`)."""
    stream = await served.connect(receive_buffer)
    secure = trio.SSLStream(stream, client_context(certificate, *protocols), server_hostname="localhost")
    await secure.do_handshake()
    return secure


async def read_to_end(stream: trio.SSLStream[trio.SocketStream]) -> bytes:
    return b"".join([bytes(data) async for data in stream])


@pytest.mark.parametrize("protocols", [(), ("http/1.1",), ("spdy/1", "http/1.1")])
async def test_http_1_is_spoken_unless_the_client_knows_http_2_and_ends_cleanly(
    start_server: StartServer, certificate: Certificate, protocols: tuple[str, ...]
) -> None:
    served = await start_server(certificates=Certificates(*certificate))
    served.gate.set()
    with trio.fail_after(SOON):
        stream = await connect(served, certificate, *protocols)
        assert stream.selected_alpn_protocol() in ("http/1.1", None)
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.send_all(b"GET /canary HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = await read_to_end(stream)  # raises when the end was not said
    assert answers.count(b"HTTP/1.1 200") == 2
    assert f"data: line {CANARY_LINES - 1}\n\n".encode() in answers


async def test_a_request_in_the_packet_that_ends_the_handshake_is_answered(
    start_server: StartServer, certificate: Certificate
) -> None:
    served = await start_server(certificates=Certificates(*certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(certificate).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with trio.fail_after(SOON):
        stream = await served.connect()
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        await stream.send_all(outgoing.read())
        done = False
        while not done:
            incoming.write(await stream.receive_some())
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                done = True
        client.write(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        await stream.send_all(outgoing.read())
        async for data in stream:
            incoming.write(data)
    assert client.read().startswith(b"HTTP/1.1 200")


async def test_a_slow_reader_gets_every_byte_in_order(start_server: StartServer, certificate: Certificate) -> None:
    served = await start_server(certificates=Certificates(*certificate))
    with trio.fail_after(SOON):
        stream = await connect(served, certificate, receive_buffer=4096)
        await stream.send_all(b"GET /numbers HTTP/1.0\r\nHost: x\r\n\r\n")
        received = await read_to_end(stream)
    assert received.partition(b"\r\n\r\n")[2] == b"".join(b"%06d," % number * 300 for number in range(1000))


class SecureHTTP2Client(HTTP2Client):
    """The same over TLS, with the bodies of all streams kept."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        super().__init__(stream)
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()

    async def events(self) -> list[h2.events.Event]:
        events = await super().events()
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
        return events

    async def body(self, stream_id: int) -> bytes:
        while stream_id not in self.ended:
            await self.events()
        return self.bodies[stream_id]


async def test_http_2_is_chosen_by_alpn_and_streams_side_by_side(
    start_server: StartServer, certificate: Certificate
) -> None:
    served = await start_server(certificates=Certificates(*certificate))
    with trio.fail_after(SOON):
        stream = await connect(served, certificate, "h2", "http/1.1")
        assert stream.selected_alpn_protocol() == "h2"
        client = SecureHTTP2Client(stream)
        held, whole = client.request(b"/canary"), client.request(b"/")
        await client.flush()
        assert await client.body(whole) == b"hello"
        served.gate.set()
        assert (await client.body(held)).decode() == CANARY_TEXT


async def test_an_http_2_stream_that_is_not_read_holds_a_bounded_buffer_and_the_others_go_on(
    start_server: StartServer, certificate: Certificate
) -> None:
    served = await start_server(certificates=Certificates(*certificate))
    served.gate.set()
    with trio.fail_after(SOON):
        client = SecureHTTP2Client(await connect(served, certificate, "h2"))
        client.h2.increment_flow_control_window(1 << 20)  # of the connection: the stream's own window stays
        client.request(b"/flood")
        await client.flush()
        while len(client.bodies.get(1, b"")) < 65_535:  # the window of a stream; nothing of it is given back
            await client.events()
        await wait_all_tasks_blocked()
        assert served.produced <= 65_535 + HIGH_WATER + len(FLOOD_CHUNK)
        assert (await client.body(await _ask(client, b"/canary"))).decode() == CANARY_TEXT


async def _ask(client: SecureHTTP2Client, path: bytes) -> int:
    stream_id = client.request(path)
    await client.flush()
    return stream_id


async def test_silent_handshakes_hold_nobody_up_and_end(
    start_server: StartServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_receiving, "HANDSHAKE_SECONDS", 0.3)
    served = await start_server(certificates=Certificates(*certificate))
    with trio.fail_after(SOON):
        silent = [await served.connect() for _ in range(50)]
        stream = await connect(served, certificate)
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await read_to_end(stream)).endswith(b"hello")
        for client in silent:
            assert await client.receive_some() == b""


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100])
async def test_what_is_no_tls_is_closed_and_nobody_else_notices(
    start_server: StartServer,
    certificate: Certificate,
    said: bytes,
    read_to_end: ReadToEnd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "triolet.http")
    served = await start_server(certificates=Certificates(*certificate))
    with trio.fail_after(SOON):
        stream = await served.connect()
        await stream.send_all(said)
        assert b"HTTP" not in await read_to_end(stream)
        secure = await connect(served, certificate)
        await secure.send_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        assert b"hello" in b"".join([bytes(data) async for data in secure])
    assert caplog.records == []


async def test_a_reloaded_certificate_serves_the_next_connection_and_a_broken_one_does_not(
    start_server: StartServer, make_certificate: MakeCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_certificate(), make_certificate()
    certificates = Certificates(*first)
    served = await start_server(certificates=certificates)
    with trio.fail_after(SOON):
        before = await connect(served, first)
        for ours, theirs in zip(first, second, strict=True):
            shutil.copyfile(theirs, ours)
        assert certificates.reload()
        await connect(served, second)
        await before.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # an open connection does not notice
        assert b"200" in await before.receive_some()
        shutil.copyfile(make_certificate().keyfile, first.keyfile)  # of another one
        assert not certificates.reload()
        assert "not reloaded" in caplog.text
        await connect(served, second)


def test_files_that_are_no_certificate_are_refused_naming_them(
    make_certificate: MakeCertificate, tmp_path: Path
) -> None:
    good, other = make_certificate(), make_certificate()
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    both = tmp_path / "both.pem"
    both.write_text(Path(good.certfile).read_text() + Path(good.keyfile).read_text())
    load_context(str(both), None)
    for certfile, keyfile, said in (
        (str(tmp_path / "none.pem"), None, "none.pem"),
        (str(empty), None, "empty.pem"),
        (good.certfile, other.keyfile, "key values mismatch"),
        (good.certfile, None, "cert.pem"),
    ):
        with pytest.raises(CertificateError, match=said):
            load_context(certfile, keyfile)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    make_certificate: MakeCertificate, tmp_path: Path
) -> None:
    good = make_certificate()
    locked = str(tmp_path / "locked.pem")
    subprocess.run(
        ["openssl", "pkey", "-in", good.keyfile, "-aes256", "-passout", "pass:secret", "-out", locked], check=True
    )
    with pytest.raises(CertificateError, match="encrypted"):
        load_context(good.certfile, locked)


async def test_tokens_go_past_the_handler_over_tls_too(certificate: Certificate) -> None:
    reply = Reply(dialect=COMPLETIONS, id="cmpl-r", created=0, model="m", choices=1)
    outbox = Outbox("r", lambda taken: None)
    written: list[Written] = []
    app = QuartTrio("stream")
    app.config.update(RESPONSE_TIMEOUT=None)  # pyright: ignore[reportUnknownMemberType]  # Quart leaves it untyped

    @app.get("/")
    async def stream() -> Response:
        write = chunk_writer(request.scope)
        assert write is not None

        def spy(data: bytes) -> Written:
            written.append(write(data))
            return written[-1]

        first = (Started(id="r", model="m", prompt_tokens=1), Token(id="r", index=0, text="first ", tokens=1))
        return Response(event_stream(outbox, Chunks(reply), first, 3600.0, spy))

    texts = [f"word{number} " for number in range(200)]
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        start = partial(
            serve,
            app,
            host="127.0.0.1",
            port=0,
            certificates=Certificates(*certificate),
            drain_timeout=0.0,
            shutdown_trigger=stop.wait,
        )
        urls = await nursery.start(start)
        assert urls[0].startswith("https://127.0.0.1:")
        with trio.fail_after(SOON):
            transport = await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))
            client = trio.SSLStream(transport, client_context(certificate), server_hostname="localhost")
            await client.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            body = b""
            while b"first" not in body:
                body += await client.receive_some()
            for text in texts:
                await wait_all_tasks_blocked()
                outbox.put(Token(id="r", index=0, text=text, tokens=1))
                outbox.flush()
            outbox.put(Finished(id="r", reason="length", usage=Usage(prompt_tokens=1, completion_tokens=200)))
            outbox.flush()
            body += await read_to_end(client)
            await transport.aclose()
        stop.set()
    assert written.count("all") > len(texts) // 2  # the kernel takes such pieces at once
    assert [body.count(f'"{text}"'.encode()) for text in texts] == [1] * len(texts)
    assert body.index(b"word0 ") < body.index(b"word199 ")


def test_a_session_tells_its_peer_of_the_end(certificate: Certificate) -> None:
    """Without a socket: what one side writes, the other reads, and the end is no cut."""
    server = TlsSession(load_context(*certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(certificate, "h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
    done = False
    while not done:
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        done = server.shake_hands(outgoing.read())
        incoming.write(server.take_output())
    assert server.protocol == "h2"
    incoming.write(server.encrypt(b"words"))
    incoming.write(server.close())
    assert client.read() == b"words"
    assert client.read() == b""
    client.write(b"asked")
    assert server.decrypt(outgoing.read()) == (b"asked", False)
    with pytest.raises(ssl.SSLError):
        server.encrypt(b"more")
