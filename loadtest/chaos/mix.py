"""Short requests of every way into a server: `ShortRequests.ask` sends one, drawn by chance, and says what was wrong.

HTTP/1.1 on kept and on new connections in four dialects, HTTP/2, WebSocket; refused ones, and ones whose client leaves.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import trio
from msgspec import structs

from ..client.client import HttpClient
from ..client.dial import Dialer, Endpoint
from ..client.ending import Fault
from ..web.requests import handshake, text_frame
from .client import read_stream

Json = dict[str, Any]  # Any: JSON
QUESTIONS: Final = 400  # so that caches of prompts both hit and miss
REUSED: Final = 40  # requests on one HTTP/2 connection or WebSocket
MODEL: Final = "triolet-demo"
MOST_TOKENS: Final = 6
_SOCKET_END: Final = re.compile(rb'"type":"(finished|failed|error)"')


class ShortRequests:
    """One client: its connections are its own. `ask` counts in `counts`, which clients share."""

    def __init__(self, server: Endpoint, rng: random.Random, counts: Counter[str], texts: dict[int, str]) -> None:
        self._server = server
        self._rng = rng
        self._counts = counts
        self._texts = texts  # of answers to the same question, which must not differ
        self._kept, self._fresh = HttpClient(server), HttpClient(server, most_idle=0)
        api = structs.replace(server, path="/v1")
        self._kept_api, self._fresh_api = HttpClient(api), HttpClient(api, most_idle=0)
        self._http2: HTTP2 | None = None
        self._socket: trio.abc.Stream | None = None
        self._used = 0  # of the socket

    async def ask(self) -> str:
        """What was wrong; empty if nothing."""
        ways: dict[str, tuple[int, Callable[[int], Awaitable[str]]]] = {
            "SSE": (4, self._stream),
            "completion": (2, self._completion),
            "messages": (1, self._messages),
            "responses": (1, self._responses),
            "ollama": (1, self._ollama),
            "HTTP/2": (2, self._on_http2),
            "WebSocket": (2, self._on_socket),
            "refused": (1, self._refused),
            "left": (4, self._leave),
        }
        (way,) = self._rng.choices([*ways], [weight for weight, _ in ways.values()])
        self._counts[way] += 1
        try:
            fault = await ways[way][1](self._rng.randrange(QUESTIONS))
        except (Fault, trio.BrokenResourceError, h2.exceptions.ProtocolError) as error:
            fault = str(error) or type(error).__name__
        return fault and f"{way}: {fault}"

    async def _stream(self, number: int) -> str:
        client = self._rng.choice((self._kept_api, self._fresh_api))
        stream = await read_stream(client, number, 1 + number % MOST_TOKENS, lambda: None)
        if stream.error or stream.ends != 1:
            return stream.error or f"{stream.ends} ends"
        same = self._texts.setdefault(number, stream.text) == stream.text
        return "" if same else f"{stream.text!r} is another answer"

    async def _post(self, path: str, body: bytes | Json, status: int = 200) -> str:
        client = self._rng.choice((self._kept, self._fresh))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with client.request("POST", path, data) as (response, _sent, _reused):
            page = await response.read_all()
            return "" if response.head.status == status else f"{response.head.status} {page[:200]!r}"

    async def _completion(self, number: int) -> str:
        prompt = f"Once upon a time {number} " * (1 + number % 30)
        return await self._post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 3})

    async def _messages(self, number: int) -> str:
        return await self._post("/v1/messages", _chat(number) | {"stream": number % 2 == 0, "max_tokens": 4})

    async def _responses(self, number: int) -> str:
        fields: Json = {"model": MODEL, "input": f"What is {number}?", "max_output_tokens": 3, "store": False}
        return await self._post("/v1/responses", fields | {"stream": number % 2 == 0})

    async def _ollama(self, number: int) -> str:
        return await self._post("/api/chat", _chat(number) | {"options": {"num_predict": 3}})

    async def _refused(self, number: int) -> str:
        return await self._post("/v1/chat/completions", b'{"messages": [' + b"1," * number, 400)

    async def _leave(self, number: int) -> str:
        with trio.move_on_after(self._rng.expovariate(20.0)), suppress(Fault):
            await read_stream(self._fresh_api, number, 200, lambda: None)
        return ""

    async def _on_http2(self, number: int) -> str:
        connection = self._http2
        if connection is None or connection.used >= REUSED:
            await self._close_http2()
            connection = self._http2 = HTTP2(await Dialer(self._server).connect(slow=False))
        status = await connection.post("/v1/chat/completions", _short(number) | {"stream": True})
        if not status:
            await self._close_http2()
        return "" if status == "200" else status or "the connection was closed"

    async def _on_socket(self, number: int) -> str:
        """By hand: a client of a library answers a ping that comes while it closes, and fails."""
        if self._socket is None or self._used >= REUSED:
            await self._close_socket()
            self._socket = await Dialer(self._server).connect(slow=False)
            self._used = 0
            await self._socket.send_all(handshake())
            if not (await self._socket.receive_some(65536)).startswith(b"HTTP/1.1 101"):
                return "no handshake"
        self._used += 1
        await self._socket.send_all(text_frame(json.dumps({"type": "create", "id": "a", "request": _short(number)})))
        received = b""
        while not (end := _SOCKET_END.search(received)):
            if not (data := await self._socket.receive_some(65536)):
                await self._close_socket()
                return "the socket was closed"
            received += data
        return "" if end[1] == b"finished" else received[-300:].decode(errors="replace")

    async def _close_http2(self) -> None:
        if self._http2 is not None:
            await trio.aclose_forcefully(self._http2.stream)
        self._http2 = None

    async def _close_socket(self) -> None:
        if self._socket is not None:
            await trio.aclose_forcefully(self._socket)
        self._socket = None

    async def close(self) -> None:
        await self._close_http2()
        await self._close_socket()
        await self._kept.close()
        await self._kept_api.close()


def _chat(number: int) -> Json:
    messages = [{"role": "user", "content": f"Tell me about number {number}."}]
    return {"model": MODEL, "messages": messages}


def _short(number: int) -> Json:
    return _chat(number) | {"max_tokens": 1 + number % MOST_TOKENS}


class HTTP2:
    """One request after another on a connection, each read to its end."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.used = 0
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._h2.initiate_connection()

    async def post(self, path: str, body: Json) -> str:
        """The status, "" if the connection or stream ended before the answer did."""
        self.used += 1
        number, data, status = self._h2.get_next_available_stream_id(), json.dumps(body).encode(), ""
        head = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": path}
        self._h2.send_headers(number, [*head.items(), ("content-type", "application/json")])
        self._h2.send_data(number, data, end_stream=True)
        while True:
            await self.stream.send_all(self._h2.data_to_send())
            received = await self.stream.receive_some(65536)
            if not received:
                return ""
            for event in self._h2.receive_data(bytes(received)):
                if isinstance(event, h2.events.ResponseReceived):
                    status = dict(event.headers)[b":status"].decode()
                elif isinstance(event, h2.events.DataReceived):
                    self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
                elif isinstance(event, h2.events.StreamEnded):
                    return status
                elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    return ""
