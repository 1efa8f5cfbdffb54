"""What we override and use of hypercorn, quart-trio, Quart, h11 and wsproto below their public names.

A test of ours that fails deep inside a connection does not say that a library has changed. These do: each names the
library, the part, and the file of ours to look at. The versions are pinned in pyproject.toml for the same reason.
"""

import inspect
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import h11
import pytest
from hypercorn.config import Config
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import FrameTooLargeError, Handshake, WebsocketBuffer
from hypercorn.trio.task_group import TaskGroup
from packaging.requirements import Requirement
from quart import Quart
from quart.routing import QuartMap
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from wsproto.connection import Connection, ConnectionType
from wsproto.frame_protocol import FrameDecoder, MessageDecoder

ROOT = Path(__file__).resolve().parent.parent.parent
EXACTLY = ("h11", "hypercorn", "quart", "quart-trio", "wsproto")

# Each with its parameters as they were when ours was written beside it.
CALLED: dict[str, tuple[Callable[..., object], str, str]] = {
    "H11Protocol()": (
        H11Protocol.__init__,
        "self app config context task_group connection_state ssl client server send",
        "transport/http1.py",
    ),
    "H11Protocol.handle": (H11Protocol.handle, "self event", "transport/connection.py"),
    "H11Protocol.stream_send": (H11Protocol.stream_send, "self event", "transport/http1.py"),
    "H11Protocol._send_h11_event": (H11Protocol._send_h11_event, "self event", "transport/http1.py"),
    "H11Protocol._check_protocol": (H11Protocol._check_protocol, "self event", "transport/http1.py"),
    "H11Protocol._create_stream": (H11Protocol._create_stream, "self request", "transport/http1.py"),
    "H11Protocol._send_error_response": (
        H11Protocol._send_error_response,
        "self status_code",
        "transport/http1.py",
    ),
    "H2ProtocolAssumedError()": (H2ProtocolAssumedError.__init__, "self data", "transport/http1.py"),
    "HTTPStream()": (
        HTTPStream.__init__,
        "self app config context task_group ssl client server send stream_id",
        "transport/http1.py and http2.py",
    ),
    "HTTPStream.app_send": (HTTPStream.app_send, "self message", "transport/http1.py"),
    "H2Protocol()": (
        H2Protocol.__init__,
        "self app config context task_group connection_state ssl client server send",
        "transport/http2.py",
    ),
    "H2Protocol.stream_send": (H2Protocol.stream_send, "self event", "transport/http2.py"),
    "H2Protocol._handle_events": (H2Protocol._handle_events, "self events", "transport/http2.py"),
    "H2Protocol._create_stream": (H2Protocol._create_stream, "self request", "transport/http2.py"),
    "H2Protocol._flush": (H2Protocol._flush, "self", "transport/http2.py"),
    "H2Protocol._close_stream": (H2Protocol._close_stream, "self stream_id", "transport/http2.py"),
    "StreamBuffer.push": (StreamBuffer.push, "self data", "transport/http2.py"),
    "StreamBuffer.pop": (StreamBuffer.pop, "self max_length", "transport/http2.py"),
    "TaskGroup.spawn": (TaskGroup.spawn, "self func args", "transport/plain_http1.py"),  # pyright: ignore[reportUnknownMemberType]  # untyped in hypercorn
    "Handshake()": (Handshake.__init__, "self headers http_version", "transport/websocket.py"),
    "Handshake.accept": (Handshake.accept, "self subprotocol additional_headers", "transport/websocket.py"),
    "WebsocketBuffer.extend": (WebsocketBuffer.extend, "self event", "transport/websocket.py"),  # pyright: ignore[reportUnknownMemberType]  # untyped in hypercorn
    "WebsocketBuffer.to_message": (WebsocketBuffer.to_message, "self", "transport/websocket.py"),  # pyright: ignore[reportUnknownMemberType]  # untyped in hypercorn
    "TrioASGIHTTPConnection.__call__": (TrioASGIHTTPConnection.__call__, "self receive send", "asgi.py"),
    "TrioASGIHTTPConnection.handle_messages": (
        TrioASGIHTTPConnection.handle_messages,
        "self nursery request receive",
        "asgi.py",
    ),
    "TrioASGIHTTPConnection._create_request_from_scope": (
        TrioASGIHTTPConnection._create_request_from_scope,
        "self send",
        "asgi.py",
    ),
    "TrioASGIHTTPConnection._send_response": (
        TrioASGIHTTPConnection._send_response,
        "self send response",
        "asgi.py",
    ),
    "QuartTrio.handle_request": (QuartTrio.handle_request, "self request", "asgi.py"),
    "QuartMap.bind_to_request": (
        QuartMap.bind_to_request,
        "self request subdomain server_name",
        "asgi.py",
    ),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_private_part_that_we_call_or_override_is_as_it_was(name: str) -> None:
    part, parameters, ours = CALLED[name]
    found = " ".join(inspect.signature(part).parameters)
    assert found == parameters, f"{name} of {part.__module__} has changed: look at web/{ours}, and then renew this line"


def attributes(*parts: object) -> set[str]:
    return {name for part in parts for name in vars(part)}


def test_the_private_attributes_that_we_read_are_there() -> None:
    config = Config()
    protocol = H11Protocol(None, config, _Context(), *(None,) * 6)  # type: ignore[arg-type]  # never called
    wanted = {"connection", "stream", "config", "context", "task_group", "connection_state", "keep_alive_requests"}
    assert wanted <= attributes(protocol), "H11Protocol of hypercorn has changed: look at web/transport/http1.py"
    assert {"buffer", "_complete", "_paused", "_is_empty"} <= attributes(StreamBuffer(_Event)), (  # type: ignore[arg-type]  # never called
        "StreamBuffer of hypercorn has changed: look at web/transport/http2.py"
    )
    http2 = H2Protocol(None, config, _Context(), *(None,) * 6)  # type: ignore[arg-type]  # never called
    assert {"connection", "streams", "stream_buffers", "priority"} <= attributes(http2), (
        "H2Protocol of hypercorn has changed: look at web/transport/http2.py"
    )
    assert "_nursery" in attributes(TaskGroup()), "TaskGroup of hypercorn: look at `_tasks` in transport/connection.py"
    parser = Connection(ConnectionType.SERVER)._proto
    assert isinstance(parser._frame_decoder, FrameDecoder), "wsproto: look at `_has_begun` in transport/websocket.py"
    assert isinstance(parser._message_decoder, MessageDecoder), "wsproto: look at `_has_begun` in websocket.py"
    assert {"buffer", "header"} <= attributes(parser._frame_decoder), "wsproto: look at `_has_begun` in websocket.py"
    assert "opcode" in attributes(parser._message_decoder), "wsproto: look at `_has_begun` in transport/websocket.py"
    assert Quart.url_map_class is QuartMap, "Quart: look at ExactMap in web/asgi.py"
    assert QuartTrio.asgi_http_class is TrioASGIHTTPConnection, "quart-trio: look at GenerationConnection in asgi.py"
    assert issubclass(FrameTooLargeError, Exception)
    assert hasattr(DataBody(b""), "__aenter__"), "Quart: look at `_send_response` in web/asgi.py"
    assert STREAM_ID == 1
    assert h11.Connection(h11.SERVER).trailing_data == (b"", False), "h11: look at web/transport/http1.py"
    assert hasattr(h11.Connection(h11.SERVER)._receive_buffer, "maybe_extract_at_most"), "h11: transport/strict_head.py"


class _Event:
    """An event that a protocol class makes as it is made."""


class _Context:
    event_class = _Event


@pytest.mark.parametrize("name", EXACTLY)
def test_the_libraries_that_we_reach_into_are_pinned(name: str) -> None:
    """To a version that this suite has run with: the private parts may change in any other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = (found for found in map(Requirement, project["dependencies"]) if found.name == name)
    assert [clause.operator for clause in requirement.specifier] == ["=="], f"{name} is not pinned in pyproject.toml"
    assert requirement.specifier.contains(version(name)), f"the {name} installed is not the one of pyproject.toml"
