"""GET /v1/stream with a real WebSocket client: many requests on one socket, and every way in which it may end."""

import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from triolet.protocol.messages import Cancel, Credit
from triolet.protocol.settings import ServeSettings
from triolet.web.wrong_keys import MOST

from ..watcher import close_code
from .conftest import Web, flood

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = "Hello, wörld!"


class Client:
    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def say(self, **frame: object) -> None:
        await self.socket.send_message(json.dumps(frame))

    async def create(self, id: str, **fields: object) -> None:
        await self.say(type="create", id=id, request=CHAT | fields)

    async def hear(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await self.socket.get_message())
        return frame

    async def hear_all(self, id: str) -> list[dict[str, Any]]:
        """The frames of one request, to its end."""
        frames = [await self.hear()]
        while frames[-1]["type"] not in ("finished", "failed"):
            frames.append(await self.hear())
        assert {frame["id"] for frame in frames} == {id}
        assert [frame["seq"] for frame in frames] == list(range(len(frames)))
        return frames


@asynccontextmanager
async def connect(web: Web, path: str = "/v1/stream", **headers: str) -> AsyncGenerator[Client, None]:
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    host = web.url.removeprefix("http://")
    # The stream is ours to close: trio-websocket forgets it when the server closes first.
    async with (
        await trio.open_tcp_stream("127.0.0.1", int(host.split(":")[1])) as stream,
        trio.open_nursery() as nursery,
    ):
        socket = await wrap_client_stream(nursery, stream, host, path, extra_headers=extra)
        yield Client(socket)
        await socket.aclose()


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def refused(web: Web, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and code of a handshake that is answered with an error."""
    response = await web.client.get(path, headers=HANDSHAKE | headers)
    return response.status_code, response.json()["error"]["code"]


async def test_a_request_from_started_to_finished(web: Web) -> None:
    async with connect(web) as client:
        await client.create("r1", temperature=0)
        started, *tokens, finished = await client.hear_all("r1")
    request = web.engine.requests[0]
    assert started == {"type": "started", "id": "r1", "seq": 0, "model": "tiny", "request_id": request.id}
    assert "".join(token["text"] for token in tokens) == TEXT
    assert sum(token["tokens"] for token in tokens) == 4
    assert {(token["type"], token["index"], token["kind"]) for token in tokens} == {("token", 0, "text")}
    assert finished["reason"] == "stop"
    assert finished["choices"] == [{"index": 0, "reason": "stop", "stop_reason": None}]
    assert finished["usage"]["completion_tokens"] == 5
    assert set(finished["timing"]) == {"queued", "ttft", "total"}


async def test_choices_and_logprobs(web: Web) -> None:
    async with connect(web) as client:
        await client.create("r1", n=2, logprobs=True, top_logprobs=2)
        _, *tokens, finished = await client.hear_all("r1")
    assert {token["index"] for token in tokens} == {0, 1}
    first = next(token for token in tokens if token["index"] == 1)
    assert first["logprobs"]["content"][0]["token"] == "Hello"
    assert [choice["index"] for choice in finished["choices"]] == [0, 1]


async def test_a_prompt_makes_it_a_completion(web: Web) -> None:
    async with connect(web) as client:
        await client.say(type="create", id="r1", request={"prompt": [1, 2]})
        await client.hear_all("r1")
    assert web.engine.requests[0].max_tokens == 16


async def test_requests_run_side_by_side_and_names_are_free_again(web: Web, scripts: SimpleNamespace) -> None:
    async with connect(web) as client:
        web.engine.script = scripts.flow
        await client.create("a")
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        web.engine.script = scripts.answer
        for _ in range(2):
            await client.create("b")
            await client.hear_all("b")
        await client.say(type="cancel", id="a")
        finished = await client.hear()
        assert (finished["id"], finished["seq"], finished["reason"]) == ("a", 2, "cancelled")
        await client.say(type="cancel", id="a")  # has ended already: nothing happens
        await client.create("a")
        await client.hear_all("a")


async def test_a_name_in_use_is_refused(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        await client.create("a")
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        await client.create("a")
        error = await client.hear()
        assert (error["type"], error["error"]["code"], error["error"]["param"]) == ("error", "invalid_value", "id")
        assert len(web.engine.requests) == 1
        await client.say(type="cancel", id="a")
        finished = await client.hear()
        assert (finished["type"], finished["id"], finished["seq"]) == ("finished", "a", 2)


async def test_the_handshakes_fallback_model_replaces_one_that_is_not_here(web: Web) -> None:
    async with connect(web, **{"X-Model-Fallback": "larger, tiny"}) as client:
        await client.create("r1", model="large")
        assert (await client.hear_all("r1"))[0]["model"] == "tiny"


@pytest.mark.parametrize("request_body", [CHAT, {"prompt": "Hi"}])
async def test_stream_options_need_no_stream(web: Web, request_body: dict[str, object]) -> None:
    async with connect(web) as client:
        for stream in ({}, {"stream": True}, {"stream": None}):
            body = request_body | stream | {"stream_options": {"include_usage": True}}
            await client.say(type="create", id="r1", request=body)
            assert (await client.hear_all("r1"))[-1]["type"] == "finished"
        await client.say(type="create", id="r1", request=body | {"stream": False})
        (failed,) = await client.hear_all("r1")
        assert (failed["error"]["code"], failed["error"]["param"]) == ("invalid_value", "stream")


@pytest.mark.parametrize(
    ("request_body", "code", "param"),
    [
        ({"messages": [], "temperature": 1}, "invalid_messages", "messages"),
        ({"messages": [{"role": "user", "content": "Hi"}], "tools": [1]}, "invalid_type", "tools[0]"),
        ({"messages": [{"role": "user", "content": "Hi"}], "model": "x"}, "model_not_found", "model"),
        ({"messages": [{"role": "user", "content": "Hi"}], "stream": False}, "invalid_value", "stream"),
        ({"messages": [{"role": "user", "content": "Hi"}], "determinism": "fast"}, "invalid_value", "determinism"),
        ({"prompt": [-1]}, "invalid_token_id", "prompt[0]"),
        ({}, "invalid_value", "messages"),
        ([], "invalid_json", None),
    ],
)
async def test_the_validator_is_that_of_http(web: Web, request_body: object, code: str, param: str | None) -> None:
    async with connect(web) as client:
        await client.say(type="create", id="r1", request=request_body)
        (failed,) = await client.hear_all("r1")
        assert (failed["error"]["code"], failed["error"]["param"]) == (code, param)
        await client.create("r1")  # the socket lives on
        await client.hear_all("r1")


async def test_what_the_engine_refuses_or_breaks_is_failed(web: Web, scripts: SimpleNamespace) -> None:
    async with connect(web) as client:
        web.engine.script = scripts.refuse
        await client.create("a")
        (failed,) = await client.hear_all("a")
        assert failed["error"]["code"] == "context_length_exceeded"
        assert "retry_after" not in failed
        web.engine.script = scripts.break_down
        await client.create("b")
        assert (await client.hear_all("b"))[-1]["error"]["code"] == "engine_error"


async def test_a_socket_has_a_limit_of_requests(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.wait
    async with connect(web) as client:
        for id in ("a", "b", "c", "d"):
            await client.create(id)
        failed = await client.hear()
        assert (failed["id"], failed["error"]["code"], failed["retry_after"]) == ("d", "rate_limit_exceeded", 1)


async def test_credit_is_the_clients_from_its_first_frame_on(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        await client.create("a")
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        await client.say(type="credit", id="a", tokens=1)
        await client.say(type="credit", id="a", tokens=100)
        await client.say(type="credit", id="other", tokens=1)
        await client.say(type="cancel", id="a")
        await client.hear()
    granted = sum(message.tokens for message in web.engine.to_scheduler() if isinstance(message, Credit))
    assert granted == 1  # 8 are there from the start and 1 was taken: the outbox's size is a bound on top


async def test_credit_of_a_create_counts_before_the_first_token(web: Web) -> None:
    web.engine.script = flood(100, "x")
    async with connect(web) as client:
        await client.say(type="create", id="a", request=CHAT, credit=1)
        tokens = 0
        while tokens < 9:  # the outbox's 8, and one
            tokens += (await client.hear()).get("tokens", 0)
        await client.say(type="cancel", id="a")
        finished = await client.hear()
    assert (finished["type"], finished["usage"]["completion_tokens"]) == ("finished", 9)


@pytest.mark.parametrize(
    "frame",
    ["{", "[]", "3", '{"type": "odd"}', '{"type": "cancel"}', '{"type": "cancel", "id": ""}', '{"id": "a"}',
     '{"type": "credit", "id": "a", "tokens": 0}', '{"type": "cancel", "id": "a", "x": 1}'],
)  # fmt: skip
async def test_frames_that_mean_nothing_are_answered_and_survived(web: Web, frame: str) -> None:
    async with connect(web) as client:
        await client.socket.send_message(frame)
        error = await client.hear()
        assert (error["type"], error["error"]["code"]) == ("error", "invalid_event")
        await client.create("a")
        await client.hear_all("a")


async def test_a_binary_frame_closes_the_socket(web: Web) -> None:
    async with connect(web) as client:
        await client.socket.send_message(b"\x00")
        assert (await client.hear())["error"]["code"] == "invalid_event"
        with pytest.raises(ConnectionClosed) as closed:
            await client.hear()
        assert close_code(closed.value) == 1003


async def test_leaving_frees_everything(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        for id in ("a", "b"):
            await client.create(id)
        for _ in range(4):
            await client.hear()
        assert web.engine.gateway.live_requests == 2
    await web.engine.gateway.wait_idle()
    cancelled = [message.id for message in web.engine.to_scheduler() if isinstance(message, Cancel)]
    assert sorted(cancelled) == sorted(request.id for request in web.engine.requests)


async def test_a_draining_server_closes_a_socket_once_it_is_idle(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        await client.create("a")
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        web.engine.gateway.refuse_new("shutting_down", "the server is shutting down")
        await client.create("b")
        assert (await client.hear())["error"]["code"] == "shutting_down"
        web.engine.gateway.complete(web.engine.requests[0].id, "stop")
        assert (await client.hear())["type"] == "finished"
        with pytest.raises(ConnectionClosed) as closed:
            await client.hear()
        assert close_code(closed.value) == 1001


async def test_pages_of_other_origins_are_refused(web: Web) -> None:
    assert await refused(web, "/v1/stream", {"Origin": "https://elsewhere.example"}) == (403, "origin_forbidden")
    foreign = {"Host": "rebound.example", "Origin": "http://rebound.example"}
    assert await refused(web, "/v1/stream", foreign) == (403, "host_forbidden")
    async with connect(web, origin=web.url) as client:
        await client.create("a")
        await client.hear_all("a")


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first", "secönd"))

    async def test_the_key_in_the_handshake(self, web: Web) -> None:
        async with connect(web, authorization="Bearer first") as client:
            await client.create("a")
            await client.hear_all("a")
        assert web.engine.requests[0].tenant != ""

    @pytest.mark.parametrize("path", ["/v1/stream", "/v1/dashboard"])
    async def test_pages_of_other_origins_hear_that_and_not_of_a_key(self, web: Web, path: str) -> None:
        """Browsers cannot send the key with a handshake: it comes in the first frame."""
        assert await refused(web, path, {"Origin": "https://elsewhere.example"}) == (403, "origin_forbidden")
        wrong = {"Authorization": "Bearer wrong"}
        assert await refused(web, path, wrong) == (401, "invalid_api_key")

    async def test_the_key_in_the_first_frame(self, web: Web) -> None:
        async with connect(web) as client:
            await client.say(type="auth", api_key="secönd")
            await client.create("a")
            await client.hear_all("a")

    async def test_many_wrong_keys_in_frames_are_refused_as_well(self, web: Web) -> None:
        codes = Counter[str]()

        async def guess() -> None:
            async with connect(web) as client:
                await client.say(type="auth", api_key="wrong")
                codes[(await client.hear())["error"]["code"]] += 1

        async with trio.open_nursery() as nursery:  # each waits for its answer
            for _ in range(2 * MOST):
                nursery.start_soon(guess)
        assert codes["too_many_wrong_keys"]  # one more each six seconds is not
        assert codes["invalid_api_key"] + codes["too_many_wrong_keys"] == 2 * MOST

    @pytest.mark.parametrize(
        "frame",
        [
            {"type": "auth", "api_key": "wrong"},
            {"type": "create", "id": "a", "request": CHAT},
            {"type": "cancel", "id": "a"},
        ],
    )
    async def test_without_the_key_nothing_runs(self, web: Web, frame: dict[str, object]) -> None:
        async with connect(web) as client:
            await client.say(**frame)
            assert (await client.hear())["error"]["code"] == "invalid_api_key"
            with pytest.raises(ConnectionClosed) as closed:
                await client.hear()
            assert close_code(closed.value) == 1008
        assert web.engine.requests == []

    @pytest.mark.parametrize("path", ["/v1/stream?api_key=first", "/v1/stream?token=first"])
    async def test_a_key_in_the_query_is_refused(self, web: Web, path: str) -> None:
        assert await refused(web, path, {}) == (401, "invalid_api_key")

    async def test_a_wrong_key_in_the_handshake_is_refused(self, web: Web) -> None:
        assert await refused(web, "/v1/stream", {"Authorization": "Bearer wrong"}) == (401, "invalid_api_key")
