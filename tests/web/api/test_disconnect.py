"""A client that leaves takes its generation with it, at whatever moment it leaves."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from triolet.protocol.messages import Cancel
from triolet.web.app import create_app

from .conftest import Web

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def post(body: dict[str, Any], field: str = "") -> bytes:
    data = json.dumps(body).encode()
    fields = f"Host: localhost\r\n{field}Content-Type: application/json\r\nContent-Length: "
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{fields}"
    return head.encode() + str(len(data)).encode() + b"\r\n\r\n" + data


async def read_until(stream: trio.SocketStream, mark: bytes) -> None:
    received = b""
    while mark not in received:
        received += await stream.receive_some()


def cancelled(web: Web) -> list[str]:
    return [message.id for message in web.engine.to_scheduler() if isinstance(message, Cancel)]


@pytest.mark.parametrize("script", ["wait", "flow"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("field", ["", "TE: trailers\r\n"])  # straight on the connection, by way of ASGI
async def test_leaving_while_queued_or_in_the_middle(
    web: Web, scripts: SimpleNamespace, script: str, streaming: bool, field: str
) -> None:
    web.engine.script = getattr(scripts, script)
    stream = await web.connect()
    await stream.send_all(post(CHAT | {"stream": streaming}, field))
    await web.engine.wait_for_requests(1)
    if streaming and script == "flow":
        await read_until(stream, b'"content":"Hel"')
    await stream.aclose()
    await web.engine.gateway.wait_idle()
    assert cancelled(web) == [web.engine.requests[0].id]


async def test_leaving_before_the_body_of_the_response_was_asked_for(web: Web, scripts: SimpleNamespace) -> None:
    """The handler has returned its response, and nothing has started the generator that would have a `finally`."""
    web.engine.script = scripts.flow
    body = json.dumps(CHAT | {"stream": True}).encode()
    started = trio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await started.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        assert message["type"] == "http.response.start"
        started.set()
        await trio.sleep_forever()

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {},
    }
    app: Any = create_app(web.engine)  # type: ignore[arg-type]  # the web's part of one
    await app(scope, receive, send)
    assert started.is_set()
    assert cancelled(web) == [web.engine.requests[0].id]
    assert web.engine.gateway.live_requests == 0


async def test_a_normal_end_cancels_nothing(web: Web) -> None:
    """The gateway tells the scheduler once, when the request ends; the exchange adds nothing to that."""
    await web.client.post("/v1/chat/completions", json=CHAT)
    assert cancelled(web) == [web.engine.requests[0].id]
    assert web.engine.gateway.accounts.finished == {"stop": 1}
