"""A chat completion as any client sends it, and how its stream ended: by the rules, with an error event, or just so.

One connection for each request, HTTP/1.1 through h11. What a stream's end was is decided by what came, never by how the
connection was closed: a stream has a terminal event if it brought `[DONE]` or an `error`.
"""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import h11
import msgspec
import trio
from msgspec import Struct

End = Literal["done", "error event", "no terminal event", "left", "refused", "no connection"]
_READ: Final = 1 << 16
_CONNECT_SECONDS: Final = 10.0


class _Delta(Struct, frozen=True):
    content: str | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()


class _Chunk(Struct, frozen=True):
    """What every server's chunk has, whatever else is in it."""

    choices: list[_Choice] = []


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class Target(Struct, frozen=True, kw_only=True):
    """Where requests go, and what they say besides the prompt."""

    url: str  # of the server, without /v1
    model: str
    fields: Mapping[str, Any] = {}  # Any: JSON, merged into every body
    keys: tuple[str, ...] = ()  # the first is the probe's, the last the flood's

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def key(self, *, flood: bool = False) -> str | None:
        return self.keys[-1 if flood else 0] if self.keys else None


class Stream:
    """One streamed request, from its start to its end. Times are seconds of trio's clock."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.status = 0
        self.token_times: list[float] = []
        self.text = ""
        self.end: End = "no connection"
        self.over = False  # the request has ended, by whatever `end` says; until then `end` is what it would be now
        self.detail = ""

    @property
    def first_token(self) -> float | None:
        return self.token_times[0] - self.began if self.token_times else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]


def body_of(target: Target, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        **target.fields,
    }


def request_bytes(target: Target, body: Mapping[str, Any], *, flood: bool = False) -> bytes:
    data, host = json.dumps(body).encode(), ":".join(map(str, target.address))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    if key := target.key(flood=flood):
        head += f"Authorization: Bearer {key}\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def stream_chat(
    target: Target,
    prompt: str,
    max_tokens: int,
    *,
    flood: bool = False,
    stream: Stream | None = None,
    on_token: Callable[[Stream], bool] = lambda stream: True,
) -> Stream:
    """Send a request and read its answer to the end, or until `on_token` says no: then the client leaves."""
    stream = stream or Stream()
    await _converse(target, prompt, max_tokens, stream, on_token, flood=flood)
    stream.over = True
    return stream


async def _converse(
    target: Target, prompt: str, max_tokens: int, stream: Stream, on_token: Callable[[Stream], bool], *, flood: bool
) -> None:
    request = request_bytes(target, body_of(target, prompt, max_tokens), flood=flood)
    try:
        with trio.fail_after(_CONNECT_SECONDS):
            connection = await trio.open_tcp_stream(*target.address)
    except (OSError, trio.TooSlowError) as error:
        stream.detail = str(error) or f"no connection within {_CONNECT_SECONDS:g} s"
        return
    async with connection:
        try:
            await connection.send_all(request)
            await _read(connection, stream, on_token)
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            stream.detail = f"{type(error).__name__}: {error}"
            if stream.end not in ("done", "error event", "refused"):
                stream.end = "no terminal event"


async def _read(connection: trio.SocketStream, stream: Stream, on_token: Callable[[Stream], bool]) -> None:
    http = h11.Connection(h11.CLIENT)
    # The request was sent by hand, as bytes that can be made once; h11 hears of one like it.
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    stream.end, waiting = "no terminal event", b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await connection.receive_some(_READ))
        elif isinstance(event, h11.Response):
            stream.status = event.status_code
            if event.status_code != 200:
                stream.end = "refused"
        elif isinstance(event, h11.Data):
            if stream.end == "refused":
                stream.detail = (stream.detail + bytes(event.data).decode(errors="replace"))[:300]
                continue
            *lines, waiting = (waiting + bytes(event.data)).replace(b"\r\n", b"\n").split(b"\n")
            for line in lines:
                if not _take(line, stream, on_token):
                    stream.end = "left"
                    return
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or event is h11.PAUSED:
            return


def _take(line: bytes, stream: Stream, on_token: Callable[[Stream], bool]) -> bool:
    """A line of the stream; False when the client wants no more."""
    if line.startswith(b"event: error"):
        stream.end = "error event"
    if not line.startswith(b"data:"):
        return True
    data = line[5:].strip()
    if data == b"[DONE]":
        stream.end = "done"
        return True
    event = json.loads(data)
    if "error" in event:
        stream.end, stream.detail = "error event", str(event["error"])[:300]
        return True
    text = "".join(choice.delta.content or "" for choice in _CHUNK.decode(data).choices)
    if not text:
        return True
    stream.text += text
    stream.token_times.append(trio.current_time())
    return on_token(stream)
