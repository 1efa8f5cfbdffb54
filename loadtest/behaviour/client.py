"""A chat completion as any client sends it, and how its stream ended: properly, with an error event, or neither.

One connection per request. How a stream ended depends only on the events received, never on how the connection was
closed. It has a terminal event if it contained `[DONE]` or an `error`.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
import trio
from msgspec import UNSET, Struct, UnsetType

from ..client.body import BadBody, EventStream
from ..client.chunk import PATHS, text_of_error
from ..client.client import HttpClient, Response
from ..client.dial import Dialer, Endpoint, read_url
from ..client.ending import Fault

End = Literal["done", "error event", "no terminal event", "left", "refused", "no connection"]
CHAT: Final = f"/v1{PATHS['chat']}"
CONNECT_SECONDS: Final = 10.0


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None


class _Chunk(Struct):
    """Only what is read here: a server whose other fields have odd shapes still streams an answer."""

    choices: list[_Choice] | None = None
    error: msgspec.Raw | UnsetType = UNSET


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class Target(Struct, frozen=True, kw_only=True):
    """Where requests go, and their fields besides the prompt."""

    url: str  # of the server, without /v1
    model: str
    fields: Mapping[str, Any] = {}  # Any: JSON, merged into every body
    keys: tuple[str, ...] = ()  # the first is the probe's, the last the flood's

    @property
    def endpoint(self) -> Endpoint:
        return read_url(self.url, path="")

    def key(self, *, flood: bool = False) -> str | None:
        return self.keys[-1 if flood else 0] if self.keys else None


class ChatStream:
    """One streamed request. Times are seconds of trio's clock."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.status = 0
        self.token_times: list[float] = []
        self.text = ""
        self.end: End = "no connection"
        self.over = False  # the request has ended as in `end`; until then `end` is what it would be now
        self.detail = ""

    @property
    def first_token(self) -> float | None:
        return self.token_times[0] - self.began if self.token_times else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]


def body_of(target: Target, prompt: str, max_tokens: int) -> bytes:
    fields = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        **target.fields,
    }
    return json.dumps(fields).encode()


async def dial(endpoint: Endpoint, slow: bool) -> trio.abc.Stream:
    """A new connection. Raises Fault."""
    try:
        with trio.fail_after(CONNECT_SECONDS):
            return await Dialer(endpoint).connect(slow)
    except trio.TooSlowError as error:
        raise Fault("connect", f"{endpoint.authority}: no connection within {CONNECT_SECONDS:g} s") from error


async def stream_chat(
    target: Target, prompt: str, max_tokens: int, *, flood: bool = False, stream: ChatStream | None = None
) -> ChatStream:
    """Send a request and read its answer to the end."""
    stream = stream or ChatStream()
    body, key = body_of(target, prompt, max_tokens), target.key(flood=flood)

    async def connect(slow: bool) -> trio.abc.Stream:
        connection = await dial(target.endpoint, slow)
        stream.end = "no terminal event"  # from here on it is the server that owes one
        return connection

    client = HttpClient(target.endpoint, connect, most_idle=0)
    try:
        async with client.request("POST", CHAT, body, key=key) as (response, _sent, _reused):
            stream.status = response.head.status
            if stream.status == 200:
                await _follow(response, stream)
            else:
                stream.end = "refused"
                stream.detail = (await response.read_all()).decode(errors="replace")[:300]
    except Fault as fault:
        stream.detail = stream.detail or f"{fault.outcome}: {fault.detail}"
    stream.over = True
    return stream


async def _follow(response: Response, stream: ChatStream) -> None:
    events = EventStream()
    try:
        while data := await response.read():
            _note_all(data, events, stream)
    finally:
        with suppress(Fault):  # the last event may lack its empty line, or be cut
            _note_all(b"\n\n", events, stream)


def _note_all(data: bytes, events: EventStream, stream: ChatStream) -> None:
    try:
        for event in events.feed(data):
            _note(event, stream)
    except (BadBody, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Fault("malformed", f"an event: {error}") from error
    finally:
        if events.failed:  # by its name, whatever its data are
            stream.end = "error event"


def _note(event: bytes, stream: ChatStream) -> None:
    if event.rstrip() == b"[DONE]":
        stream.end = "done"
        return
    chunk = _decode_chunk(event)
    if (refusal := text_of_error(chunk.error)) is not None:
        stream.end, stream.detail = "error event", refusal[:300]
    elif text := "".join(choice.delta.content or "" for choice in chunk.choices or () if choice.delta):
        stream.text += text
        stream.token_times.append(trio.current_time())
