"""The seven inputs that end a stock hypercorn process, against a real `triolet serve`.

Beside each, eight canary streams are held in their middle by credit: their text must be what it is without the attack,
the offending connection must be closed (or, for the late upload, its stream answered), and the same processes serve on.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import h2.events
import hyperframe.frame
import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from ..web.transport.test_hostile import (
    HTTP2Client,
    h2_many_priority_frames,
    h2_non_ascii_method,
    h2_non_ascii_path,
    h2_plain_connect,
    ws_byte_after_upgrade,
    ws_non_ascii_protocol,
)
from .conftest import PATIENCE, Serve, Server

CANARIES = 8
HELD_AT = 16  # tokens granted before the attack; the default credit of 256 may be spent before the grant arrives
TOKENS = 300

Attack = Callable[[trio.SocketStream], Awaitable[None]]


async def h2_data_after_an_early_answer(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    upload = client.request(
        b"/v1/completions",
        (b"content-length", b"100000000"),
        (b"content-type", b"application/json"),
        method=b"POST",
        end=False,
    )
    await client.flush()
    answer = await client.wait_for(h2.events.ResponseReceived, upload)
    assert dict(answer.headers)[b":status"] == b"413"
    await client.wait_for(h2.events.StreamEnded, upload)
    await client.flush(hyperframe.frame.DataFrame(upload, b"x" * 1000).serialize() * 5)
    await stream.send_eof()


KILLERS: list[Attack] = [
    h2_non_ascii_path,
    h2_non_ascii_method,
    h2_plain_connect,
    h2_data_after_an_early_answer,
    h2_many_priority_frames,
    ws_non_ascii_protocol,
    ws_byte_after_upgrade,
]


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve("--quantize", "int8")


class Canary:
    """One stream that goes on only when it is granted more."""

    def __init__(self, socket: WebSocketConnection, number: int) -> None:
        self._socket = socket
        self._number = number
        self.text = ""

    async def begin(self) -> None:
        request = {
            "model": "triolet-demo",
            "messages": [{"role": "user", "content": f"Tell me a story about {self._number} birds."}],
            "seed": self._number,
            "ignore_eos": True,
            "max_tokens": TOKENS,
        }
        await self._send({"type": "create", "id": "c", "request": request})
        await self._send({"type": "credit", "id": "c", "tokens": HELD_AT})

    async def sing(self) -> None:
        """Take everything up to the end."""
        await self._send({"type": "credit", "id": "c", "tokens": TOKENS})
        while True:
            frame = json.loads(await self._socket.get_message())
            assert frame["type"] not in ("failed", "error"), frame
            if frame["type"] == "finished":
                return
            self.text += frame.get("text", "")

    async def _send(self, frame: dict[str, object]) -> None:
        await self._socket.send_message(json.dumps(frame))


async def texts_beside(server: Server, attack: Attack | None) -> list[str]:
    """The canaries' texts, with an attack while all of them are in the middle of their answers."""
    canaries: list[Canary] = []
    attacked = trio.Event()

    async def keep(number: int) -> None:
        async with open_websocket_url(server.url.replace("http://", "ws://") + "/v1/stream") as socket:
            canary = Canary(socket, number)
            canaries.append(canary)
            await canary.begin()
            await attacked.wait()
            await canary.sing()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for number in range(CANARIES):
                nursery.start_soon(keep, number)
            await trio.to_thread.run_sync(
                server.wait_until, lambda: server.gauge("triolet_requests_parked") == CANARIES, "all canaries are held"
            )
            if attack is not None:
                await _run(server, attack)
            attacked.set()
    return [canary.text for canary in sorted(canaries, key=lambda canary: canary._number)]


async def _run(server: Server, attack: Attack) -> None:
    """The attack, and then the end of its connection, which the server must bring about."""
    async with await trio.open_tcp_stream("127.0.0.1", int(server.url.rpartition(":")[2])) as stream:
        with suppress(trio.BrokenResourceError):  # it may be closed before the attack is complete
            await attack(stream)
            async for _ in stream:
                pass


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[str]:
    return trio.run(texts_beside, server, None)


@pytest.mark.parametrize("attack", KILLERS, ids=lambda attack: attack.__name__)
async def test_everything_else_goes_on(server: Server, undisturbed: list[str], attack: Attack) -> None:
    worker = server.worker().pid
    assert await texts_beside(server, attack) == undisturbed
    assert server.worker().pid == worker  # the front too is the process that was started: `worker` asks its children
    await trio.to_thread.run_sync(server.wait_balanced)


def test_the_canaries_differ(undisturbed: list[str]) -> None:
    assert len(set(undisturbed)) == CANARIES  # twins would hide a mix-up
    assert all(len(text) > HELD_AT for text in undisturbed)
