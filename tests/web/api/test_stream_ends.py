"""Every dialect's stream has one end, however its request ends: cancelled, at its deadline, unread, or failed."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import pytest
import trio
from trio_websocket import WebSocketConnection, connect_websocket_url

from triolet.protocol.errors import ApiError
from triolet.protocol.events import FinishReason
from triolet.protocol.requests import Generate

from .conftest import ScriptedEngine, Web

Ending = FinishReason | Literal["shutting_down"]
ENDINGS: tuple[Ending, ...] = ("cancelled", "deadline", "stalled", "shutting_down")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
Frames = list[dict[str, Any]]  # JSON


def events(text: str) -> Frames:
    """Of a stream of server-sent events; `[DONE]` is `{}`."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [{} if line == "[DONE]" else json.loads(line) for line in data]


def ends_of_openai(frames: Frames) -> list[str]:
    said: list[str] = []
    for frame in frames:
        said += ["[DONE]"] if not frame else [frame["error"]["code"]] if "error" in frame else []
        said += [choice["finish_reason"] for choice in frame.get("choices", ()) if choice["finish_reason"]]
    return said


def ends_of_responses(frames: Frames) -> list[str]:
    """The name of the event, which some clients go by, and what the response says."""
    ends = [
        frame for frame in frames if frame["type"] in ("response.completed", "response.incomplete", "response.failed")
    ]
    return [word for frame in ends for word in (frame["type"], frame["response"]["status"])]


def ends_of_anthropic(frames: Frames) -> list[str]:
    said: list[str] = []
    for frame in frames:
        match frame["type"]:
            case "message_delta":
                said.append(frame["delta"]["stop_reason"])
            case "message_stop":
                said.append("message_stop")
            case "error":
                said.append(frame["error"]["details"]["error_code"])
            case _:
                pass
    return said


def ends_of_ollama(frames: Frames) -> list[str]:
    return [frame.get("error") or frame["done_reason"] for frame in frames if frame.get("done") or "error" in frame]


def ends_of_socket(frames: Frames) -> list[str]:
    ends = [frame for frame in frames if frame["type"] in ("finished", "failed")]
    return [frame["error"]["code"] if frame["type"] == "failed" else frame["reason"] for frame in ends]


class Dialect(NamedTuple):
    """`ends` are all that says that a stream ended; `expected` for each of ENDINGS. A socket is told `body`."""

    path: str
    body: dict[str, Any]  # JSON
    ends: Callable[[Frames], list[str]]
    expected: tuple[list[str], ...]
    socket: bool = False


OPENAI = (["stop", "[DONE]"], ["length", "[DONE]"], ["length", "[DONE]"], ["shutting_down"])
RESPONSES = (
    ["response.incomplete", "cancelled"],
    ["response.incomplete", "incomplete"],
    ["response.incomplete", "incomplete"],
    ["response.failed", "failed"],
)
DIALECTS = {
    "chat": Dialect("/v1/chat/completions", CHAT | {"stream": True}, ends_of_openai, OPENAI),
    "completions": Dialect("/v1/completions", {"prompt": "Hi", "stream": True}, ends_of_openai, OPENAI),
    "responses": Dialect("/v1/responses", {"input": "Hi", "stream": True}, ends_of_responses, RESPONSES),
    "responses, socket": Dialect(
        "/v1/responses", {"type": "response.create", "input": "Hi"}, ends_of_responses, RESPONSES, socket=True
    ),
    "anthropic": Dialect(
        "/v1/messages",
        CHAT | {"max_tokens": 9, "stream": True},
        ends_of_anthropic,
        (
            ["end_turn", "message_stop"],
            ["max_tokens", "message_stop"],
            ["max_tokens", "message_stop"],
            ["shutting_down"],
        ),
    ),
    "ollama": Dialect("/api/chat", CHAT, ends_of_ollama, (["stop"], ["length"], ["length"], ["the end"])),
    "stream": Dialect(
        "/v1/stream",
        {"type": "create", "id": "a", "request": CHAT},
        ends_of_socket,
        (["cancelled"], ["deadline"], ["stalled"], ["shutting_down"]),
        socket=True,
    ),
}


def ending(how: Ending) -> Callable[[ScriptedEngine, Generate], Awaitable[None]]:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await trio.lowlevel.checkpoint()
        engine.gateway.started(request.id)
        engine.token(request, "Hel")
        if how == "shutting_down":
            engine.gateway.fail(request.id, ApiError("shutting_down", "the end"))
        else:
            engine.finish_choice(request, reason=how)
            engine.gateway.complete(request.id, how)

    return script


async def over_http(web: Web, dialect: Dialect) -> Frames:
    answer = await web.client.post(dialect.path, json=dialect.body)
    assert answer.status_code == 200, answer.text
    if "ndjson" in answer.headers["content-type"]:
        return [json.loads(line) for line in answer.text.splitlines()]
    return events(answer.text)


async def over_socket(socket: WebSocketConnection, dialect: Dialect) -> Frames:
    """All frames up to the one behind the end: the answer of a message that is refused."""
    await socket.send_message(json.dumps(dialect.body))
    frames: Frames = []
    while not dialect.ends(frames):
        frames.append(json.loads(await socket.get_message()))
    await socket.send_message("{}")
    while (frame := json.loads(await socket.get_message()))["type"] != "error":
        frames.append(frame)
    return frames


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_stream_has_one_end(web: Web, name: str) -> None:
    dialect = DIALECTS[name]
    for how, expected in zip(ENDINGS, dialect.expected, strict=True):
        web.engine.script = ending(how)
        if not dialect.socket:
            frames = await over_http(web, dialect)
        else:
            async with trio.open_nursery() as nursery:
                socket = await connect_websocket_url(nursery, web.url.replace("http", "ws") + dialect.path)
                frames = await over_socket(socket, dialect)
                await socket.aclose()
        assert dialect.ends(frames) == expected, how


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_request_may_have_a_deadline(web: Web, name: str) -> None:
    dialect = DIALECTS[name]
    seconds = "2.5"
    before = trio.current_time()
    if dialect.socket:
        async with trio.open_nursery() as nursery:
            headers = [(b"X-Request-Timeout", seconds.encode())]
            url = web.url.replace("http", "ws") + dialect.path
            socket = await connect_websocket_url(nursery, url, extra_headers=headers)
            await over_socket(socket, dialect)
            await socket.aclose()
    else:
        await web.client.post(dialect.path, json=dialect.body, headers={"X-Request-Timeout": seconds})
    (request,) = web.engine.requests
    assert request.deadline is not None
    assert before + 2.5 <= request.deadline <= trio.current_time() + 2.5


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "ollama"])
async def test_a_body_may_have_deadlines(web: Web, name: str) -> None:
    dialect, wishes = DIALECTS[name], {"deadline_ms": 2500, "ttft_deadline_ms": 1500}
    inner = {"request": dialect.body["request"] | wishes} if "request" in dialect.body else wishes
    dialect = dialect._replace(body=dialect.body | inner)
    if dialect.socket:
        async with trio.open_nursery() as nursery:
            socket = await connect_websocket_url(nursery, web.url.replace("http", "ws") + dialect.path)
            await over_socket(socket, dialect)
            await socket.aclose()
    else:
        await web.client.post(dialect.path, json=dialect.body)
    (request,) = web.engine.requests
    assert (request.deadline, request.first_token_deadline) == (
        request.arrival_time + 2.5,
        request.arrival_time + 1.5,
    )


async def test_of_a_header_and_a_body_the_earlier_deadline_counts(web: Web) -> None:
    for header, milliseconds, seconds in (("1", 2000, 1.0), ("3", 2000, 2.0)):
        await web.client.post(
            "/v1/chat/completions",
            json=CHAT | {"deadline_ms": milliseconds},
            headers={"X-Request-Timeout": header},
        )
        request = web.engine.requests[-1]
        assert request.deadline == request.arrival_time + seconds


@pytest.mark.parametrize("field", ["deadline_ms", "ttft_deadline_ms"])
@pytest.mark.parametrize("value", [0, -5, 1.5, "1"])
async def test_a_deadline_is_a_number_of_milliseconds(web: Web, field: str, value: object) -> None:
    refused = await web.client.post("/v1/chat/completions", json=CHAT | {field: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_who_cannot_be_served_in_time_is_told_when_to_try_again(web: Web) -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await trio.lowlevel.checkpoint()
        engine.gateway.fail(request.id, ApiError("deadline_unmeetable", "in 9 s", retry_after=7))

    web.engine.script = script
    refused = await web.client.post("/v1/chat/completions", json=CHAT | {"ttft_deadline_ms": 100})
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")
    assert refused.json()["error"]["code"] == "deadline_unmeetable"


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
async def test_a_timeout_is_a_number_of_seconds(web: Web, value: str) -> None:
    refused = await web.client.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Timeout": value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Request-Timeout")


async def test_the_field_of_other_servers_is_told_the_header(web: Web) -> None:
    refused = await web.client.post("/v1/chat/completions", json=CHAT | {"timeout": 2})
    assert refused.json()["error"]["message"] == "Unknown parameter: timeout; send the header X-Request-Timeout."
