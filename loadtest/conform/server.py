"""The server under examination: requests to it, and their answers as they are on the wire."""

import json
from functools import cached_property
from typing import Any, Final

import msgspec

from ..client.body import EventStream
from ..client.chunk import refusal_text
from ..client.client import HttpClient
from ..client.dial import read_url

MOST_BYTES: Final = 1 << 22  # of one answer
DONE: Final = b"[DONE]"
NO_SUCH_THING: Final = frozenset({404, 405, 501})
REFUSED: Final = NO_SUCH_THING | {400, 422}


class RawReply:
    """A whole answer. `events`: the data of its events, if it is a stream of them."""

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.body = body
        self.content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        self._headers = headers

    def __getitem__(self, name: str) -> Any:  # Any: JSON
        """A field of the body. Raises LookupError and TypeError as a client's code would."""
        return self.json[name]

    @cached_property
    def json(self) -> Any:  # Any: JSON
        return json.loads(self.body)

    @cached_property
    def lines(self) -> list[Any]:  # Any: JSON
        """Of a body with one JSON value a line."""
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]

    @cached_property
    def events(self) -> list[bytes]:
        return EventStream().feed(self.body + b"\n\n")

    @cached_property
    def chunks(self) -> list[Any]:  # Any: JSON
        """The events but `[DONE]`."""
        return [json.loads(event) for event in self.events if event.strip() != DONE]

    @property
    def refusal(self) -> str:
        return f"{self.status} {refusal_text(self.body)}"[:200]


class ExaminedServer:
    """Raises Fault where the connection fails; any status is an answer."""

    def __init__(self, url: str, *, model: str, key: str | None = None) -> None:
        self.model = model
        self.key = key
        self._client = HttpClient(read_url(url, path=""))

    async def get(self, path: str) -> RawReply:
        return await self._send("GET", path, b"", self.key)

    async def post(self, path: str, body: dict[str, Any], **fields: Any) -> RawReply:  # Any: JSON
        """`fields` are added to the body, and so is the model, where the body does not name one."""
        data = msgspec.json.encode({"model": self.model, **body, **fields})
        return await self._send("POST", path, data, self.key)

    async def post_bytes(self, path: str, data: bytes) -> RawReply:
        return await self._send("POST", path, data, self.key)

    async def get_with_key(self, path: str, key: str) -> RawReply:
        return await self._send("GET", path, b"", key)

    async def leave(self, path: str, body: dict[str, Any]) -> None:  # Any: JSON
        """Close the connection after the first bytes of the answer."""
        data = msgspec.json.encode({"model": self.model, **body})
        async with self._client.request("POST", path, data, key=self.key) as (response, _sent, _reused):
            await response.read()

    async def close(self) -> None:
        await self._client.close()

    async def _send(self, method: str, path: str, data: bytes, key: str | None) -> RawReply:
        async with self._client.request(method, path, data, key=key) as (response, _sent, _reused):
            body = await response.read_all(MOST_BYTES)
            return RawReply(response.head.status, response.head.headers, body)
