"""Inputs that end a stock hypercorn process, or fill it: here it serves on, and the streams beside are untouched.

Each attack runs beside eight canary streams that are held in their middle until the attack is over.
"""

import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import hyperframe.frame
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ..conftest import ReadToEnd, Served, StartServer

SOON = 20.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run
CANARIES = 8


Kind = TypeVar("Kind", bound=h2.events.Event)


class HTTP2Client:
    """HTTP/2 with prior knowledge; says what the h2 library lets it say, and raw frames beyond that."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None
            )
        )
        self.h2.initiate_connection()
        self._unread: deque[h2.events.Event] = deque()

    def request(self, path: bytes = b"/", *extra: tuple[bytes, bytes], method: bytes = b"GET", end: bool = True) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        headers = [(b":method", method), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", path), *extra]
        self.h2.send_headers(stream_id, headers, end_stream=end)
        return stream_id

    async def flush(self, raw: bytes = b"") -> None:
        await self.stream.send_all(self.h2.data_to_send() + raw)

    async def events(self) -> list[h2.events.Event]:
        data = await self.stream.receive_some()
        assert data, "the server closed the connection"
        events = self.h2.receive_data(data)
        await self.flush()
        return events

    async def wait_for(self, kind: type[Kind], stream_id: int | None = None) -> Kind:
        """The next such event; those before it are passed over, those after it are kept for the next call."""
        while True:
            while self._unread:
                event = self._unread.popleft()
                if isinstance(event, kind) and (stream_id is None or stream_id == getattr(event, "stream_id", None)):
                    return event
            self._unread.extend(await self.events())


async def h2_non_ascii_path(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    client.request(b"/\xff\xfe")
    await client.flush()


async def h2_non_ascii_method(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    client.request(method=b"G\xcbT")
    await client.flush()


async def h2_plain_connect(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    client.h2.send_headers(1, [(b":method", b"CONNECT"), (b":authority", b"x:1")])
    await client.flush()


async def h2_many_priority_frames(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    frames = [hyperframe.frame.PriorityFrame(stream_id, stream_weight=1) for stream_id in range(3, 3 + 2 * 1001, 2)]
    await client.flush(b"".join(frame.serialize() for frame in frames))


async def ws_non_ascii_protocol(stream: trio.SocketStream) -> None:
    await stream.send_all(websocket_request("/nowhere", b"Sec-WebSocket-Protocol: \xff\xfe\r\n"))


async def ws_byte_after_upgrade(stream: trio.SocketStream) -> None:
    await stream.send_all(websocket_request("/nowhere") + b"\x81")


async def h1_both_lengths(stream: trio.SocketStream) -> None:
    head = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    await stream.send_all(head + b"0\r\n\r\n")


async def h1_proxy_target(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET http://elsewhere/canary HTTP/1.1\r\nHost: x\r\n\r\n")


async def h1_header_too_large(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * 20_000)


async def h1_whole_header_too_large(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * 20_000 + b"\r\n\r\n")


async def h1_other_expectation(stream: trio.SocketStream) -> None:
    await stream.send_all(b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 200-ok\r\n\r\n")


async def h1_bad_chunk(stream: trio.SocketStream) -> None:
    await stream.send_all(b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n")


async def h1_two_keys(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n")


async def h1_ssh_banner(stream: trio.SocketStream) -> None:
    await stream.send_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")


async def h2_two_keys(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    client.request(b"/", (b"authorization", b"Bearer a"), (b"authorization", b"Bearer b"))
    await client.flush()


async def h2_lower_case_method(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    client.request(method=b"get")
    await client.flush()


async def h2_ping_flood(stream: trio.SocketStream) -> None:
    await HTTP2Client(stream).flush(hyperframe.frame.PingFrame(0, b"8 bytes.").serialize() * 2000)


async def h2_settings_ack_flood(stream: trio.SocketStream) -> None:
    await HTTP2Client(stream).flush(hyperframe.frame.SettingsFrame(0, flags=["ACK"]).serialize() * 2000)


async def h2_unknown_frame_flood(stream: trio.SocketStream) -> None:
    await HTTP2Client(stream).flush((bytes(3) + b"\xee" + bytes(5)) * 2000)


async def h2_window_update_flood(stream: trio.SocketStream) -> None:
    await HTTP2Client(stream).flush(hyperframe.frame.WindowUpdateFrame(0, 1).serialize() * 2000)


async def h2_ping_ack_flood(stream: trio.SocketStream) -> None:
    await HTTP2Client(stream).flush(hyperframe.frame.PingFrame(0, b"8 bytes.", flags=["ACK"]).serialize() * 2000)


async def h2_byte_by_byte(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    upload = client.request(b"/upload", method=b"POST", end=False)
    await client.flush(hyperframe.frame.DataFrame(upload, b"x").serialize() * 2000)


async def h2_header_flood_on_one_stream(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    client.h2.reset_stream(client.request(b"/quiet", end=False), h2.errors.ErrorCodes.CANCEL)
    trailers = hyperframe.frame.HeadersFrame(1, b"", flags=["END_HEADERS", "END_STREAM"])
    await client.flush(trailers.serialize() * 2000)


async def h2_rapid_reset(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    with suppress(trio.BrokenResourceError):
        for _ in range(2000):
            client.h2.reset_stream(client.request(b"/quiet"), h2.errors.ErrorCodes.CANCEL)
            await client.flush()


def websocket_request(path: str, header: bytes = b"") -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    return head.encode() + key + header + b"\r\n"


ATTACKS = [
    h2_non_ascii_path,
    h2_non_ascii_method,
    h2_plain_connect,
    h2_many_priority_frames,
    ws_non_ascii_protocol,
    ws_byte_after_upgrade,
    h1_both_lengths,
    h1_proxy_target,
    h1_header_too_large,
    h1_whole_header_too_large,
    h1_other_expectation,
    h1_bad_chunk,
    h1_two_keys,
    h1_ssh_banner,
    h2_two_keys,
    h2_lower_case_method,
    h2_ping_flood,
    h2_settings_ack_flood,
    h2_unknown_frame_flood,
    h2_window_update_flood,
    h2_ping_ack_flood,
    h2_byte_by_byte,
    h2_header_flood_on_one_stream,
    h2_rapid_reset,
]


async def beside_canaries(served: Served, read_to_end: ReadToEnd, attack: Callable[[], Awaitable[None]]) -> None:
    expected = "".join(f"data: line {number}\n\n" for number in range(20)).encode()
    answers: list[bytes] = []
    halfway = 0

    async def canary() -> None:
        nonlocal halfway
        stream = await served.connect()
        await stream.send_all(b"GET /canary HTTP/1.0\r\nHost: x\r\n\r\n")
        received = b""
        while b"line 9\n" not in received:
            received += await stream.receive_some()
        halfway += 1
        received += await read_to_end(stream)
        answers.append(received.partition(b"\r\n\r\n")[2])

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            for _ in range(CANARIES):
                nursery.start_soon(canary)
            while halfway < CANARIES:
                await wait_all_tasks_blocked(0.01)
            await attack()
            assert (await served.get("/")).endswith(b"hello")
            served.gate.set()
    assert answers == [expected] * CANARIES


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_the_offending_connection_is_closed_and_nothing_else(
    start_server: StartServer, read_to_end: ReadToEnd, attack: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    served = await start_server()

    async def run() -> None:
        stream = await served.connect()
        await attack(stream)
        answer = await read_to_end(stream)
        if attack.__name__.startswith(("h1_", "ws_")):
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 417", b"HTTP/1.1 431"))
            assert json.loads(body)["error"]["type"] == "invalid_request_error"

    await beside_canaries(served, read_to_end, run)


async def test_data_after_an_early_answer_leaves_the_answer_and_the_connection(
    start_server: StartServer, read_to_end: ReadToEnd
) -> None:
    served = await start_server()

    async def run() -> None:
        client = HTTP2Client(await served.connect())
        upload = client.request(b"/upload", (b"content-length", b"1000000"), method=b"POST", end=False)
        await client.flush()
        answer = await client.wait_for(h2.events.ResponseReceived, upload)
        assert dict(answer.headers)[b":status"] == b"413"
        await client.wait_for(h2.events.StreamEnded, upload)
        late = hyperframe.frame.DataFrame(upload, b"x" * 1000).serialize()
        await client.flush(late * 5)
        client.request()
        await client.flush()
        seen: list[h2.events.Event] = []
        while not any(isinstance(event, h2.events.DataReceived) and event.data == b"hello" for event in seen):
            seen += await client.events()
        # Together with the answer, a reset would make curl 7.88 forget it. It comes later.
        assert not any(isinstance(event, h2.events.StreamReset) for event in seen)
        reset = await client.wait_for(h2.events.StreamReset, upload)
        assert reset.error_code == h2.errors.ErrorCodes.NO_ERROR

    await beside_canaries(served, read_to_end, run)


async def test_a_client_that_grants_no_window_costs_64_kib_and_is_reset_at_the_deadline(
    start_server: StartServer,
) -> None:
    served = await start_server(send_timeout=0.5)
    client = HTTP2Client(await served.connect())
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    stream_id = client.request(b"/flood")
    await client.flush()
    with trio.fail_after(SOON):
        reset = await client.wait_for(h2.events.StreamReset, stream_id)
        await served.ended.wait()
    assert reset.error_code == h2.errors.ErrorCodes.CANCEL
    assert 0 < served.produced <= 2**16


async def test_a_slow_http2_reader_never_has_more_than_64_kib_waiting(start_server: StartServer) -> None:
    served = await start_server()
    client = HTTP2Client(await served.connect())
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    stream_id = client.request(b"/flood")
    await client.flush()
    received = 0
    with trio.fail_after(SOON):
        await client.wait_for(h2.events.SettingsAcknowledged)
        for _ in range(50):
            client.h2.increment_flow_control_window(3000, stream_id)
            await client.flush()
            data = await client.wait_for(h2.events.DataReceived, stream_id)
            client.h2.increment_flow_control_window(len(data.data))
            received += len(data.data)
            assert served.produced - received <= 2**16
    assert received >= 50 * 1000
