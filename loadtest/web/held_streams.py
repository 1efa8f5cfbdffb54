"""A client that opens thousands of streams, holds them open, and reads only data that has arrived.

`take` reads the available data and returns whether every stream of the connection has a token. HTTP/2 carries 100
streams per connection, the others one.
"""

import json
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import h2.config
import h2.connection
import h2.events

from .check_sse import StreamError
from .requests import completion, completion_body, create_frame, handshake

Wire = Literal["http1", "http2", "websocket"]
HTTP2_STREAMS: Final = 100  # per connection: the usual default of servers
_TOKENS: Final = 10_000  # so many that no stream ends by itself
_READ: Final = 1 << 16
PATIENCE_SECONDS: Final = 60.0  # after this, a silent server has failed


class HeldStream:
    """A connection with one stream. `sign`: bytes found in its first token and not before."""

    streams = 1

    def __init__(self, port: int, requests: tuple[bytes, ...], sign: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._sign = sign
        self._seen = b""
        for request in requests[:-1]:  # the handshake and its answer
            self.socket.sendall(request)
            self._seen += self.socket.recv(_READ)
        self.socket.sendall(requests[-1])

    def take(self) -> bool:
        some = self.socket.recv(_READ)
        if not some:
            raise StreamError(f"a connection was closed before its first token: {self._seen[:300]!r}")
        self._seen = (self._seen + some)[-4 * _READ :]
        return self._sign in self._seen


class HeldHTTP2:
    """A connection with many streams."""

    def __init__(self, port: int, first: int, streams: int) -> None:
        self.streams = streams
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self._begun: set[int] = set()
        self._http2.initiate_connection()
        for stream in range(first, first + streams):
            self._request(json.dumps(completion_body(stream, _TOKENS)).encode())
        self.socket.sendall(self._http2.data_to_send())

    def _request(self, body: bytes) -> None:
        id = self._http2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":authority": "127.0.0.1", ":path": "/v1/completions"}
        headers |= {"content-type": "application/json", "content-length": str(len(body))}
        self._http2.send_headers(id, list(headers.items()))
        self._http2.send_data(id, body, end_stream=True)

    def take(self) -> bool:
        some = self.socket.recv(_READ)
        if not some:
            raise StreamError("an HTTP/2 connection was closed before its streams had begun")
        for event in self._http2.receive_data(some):
            if isinstance(event, h2.events.DataReceived):
                self._http2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
                if b"data: " in (event.data or b""):
                    self._begun.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                raise StreamError(f"the server ended what should stay open: {event}")
        self.socket.sendall(self._http2.data_to_send())
        return len(self._begun) == self.streams


Held = HeldStream | HeldHTTP2


def openers(wire: Wire, port: int, streams: int) -> list[Callable[[], Held]]:
    """One function per connection needed for this many streams."""
    if wire == "http2":
        firsts = range(0, streams, HTTP2_STREAMS)
        return [partial(HeldHTTP2, port, first, min(HTTP2_STREAMS, streams - first)) for first in firsts]
    if wire == "websocket":
        return [
            partial(HeldStream, port, (handshake(), create_frame(stream, _TOKENS)), b'"type":"token"')
            for stream in range(streams)
        ]
    return [partial(HeldStream, port, (completion(stream, _TOKENS),), b"data: ") for stream in range(streams)]
