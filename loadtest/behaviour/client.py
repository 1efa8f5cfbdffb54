"""A chat completion as any client sends it, and how its stream ended: properly, with an error event, or neither.

One connection per request. How a stream ended depends only on the events received, never on how the connection was
closed. It has a terminal event if it contained `[DONE]` or an `error`.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
import trio
from msgspec import Struct

from ..client.body import BadBody, EventStream
from ..client.chunk import PATHS, decode_chunk
from ..client.client import HttpClient, Response
from ..client.dial import Endpoint, read_url
from ..client.ending import Fault

End = Literal["done", "error event", "no terminal event", "left", "refused", "no connection"]
CHAT: Final = f"/v1{PATHS['chat']}"


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
        self.end: End = "no terminal event"
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


async def stream_chat(
    target: Target, prompt: str, max_tokens: int, *, flood: bool = False, stream: ChatStream | None = None
) -> ChatStream:
    """Send a request and read its answer to the end."""
    stream = stream or ChatStream()
    client = HttpClient(target.endpoint, most_idle=0)
    body, key = body_of(target, prompt, max_tokens), target.key(flood=flood)
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
        if fault.outcome == "connect":
            stream.end = "no connection"
    stream.over = True
    return stream


async def _follow(response: Response, stream: ChatStream) -> None:
    events = EventStream()
    while data := await response.read():
        try:
            for event in events.feed(data):
                _note(event, stream)
        except (BadBody, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Fault("malformed", f"an event: {error}") from error
        if events.failed:
            stream.end = "error event"


def _note(event: bytes, stream: ChatStream) -> None:
    if event == b"[DONE]":
        stream.end = "done"
        return
    chunk = decode_chunk(event)
    if (refusal := chunk.refusal()) is not None:
        stream.end, stream.detail = "error event", refusal[:300]
    elif text := chunk.text():
        stream.text += text
        stream.token_times.append(trio.current_time())
