"""/v1/responses as a WebSocket: one response after another, and every way in which one may end."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from triolet.protocol.requests import ChatPrompt
from triolet.protocol.settings import ServeSettings

from ..watcher import close_code
from .conftest import Web

PATH = "/v1/responses"
TEXT = "Hello, wörld!"
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def settings(settings: ServeSettings, tmp_path: Path) -> ServeSettings:
    return structs.replace(settings, data=str(tmp_path / "data"))


class Client:
    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def create(self, text: str = "Hi", **fields: object) -> None:
        await self.socket.send_message(json.dumps({"type": "response.create", "input": text} | fields))

    async def hear_all(self) -> list[dict[str, Any]]:  # Any: JSON
        """The events of one response, to its end."""
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in TERMINAL:
            events.append(json.loads(await self.socket.get_message()))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events


@asynccontextmanager
async def connect(web: Web, **headers: str) -> AsyncGenerator[Client, None]:
    host = web.url.removeprefix("http://")
    async with (
        await trio.open_tcp_stream("127.0.0.1", int(host.split(":")[1])) as stream,
        trio.open_nursery() as nursery,
    ):
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        socket = await wrap_client_stream(nursery, stream, host, PATH, extra_headers=extra)
        yield Client(socket)
        await socket.aclose()


async def test_the_events_are_those_of_a_stream(web: Web) -> None:
    async with connect(web) as client:
        await client.create(stream=True)
        events = await client.hear_all()
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == TEXT
    response = events[-1]["response"]
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", TEXT)
    assert (await web.client.get(f"{PATH}/{response['id']}")).json() == response


async def test_a_conversation_goes_on_though_nothing_is_stored(web: Web) -> None:
    async with connect(web) as client:
        await client.create(store=False)
        id = (await client.hear_all())[-1]["response"]["id"]
        await client.create("And?", store=False, previous_response_id=id)
        again = (await client.hear_all())[-1]["response"]["id"]
        await client.create("So?", store=False, previous_response_id=again)
        await client.hear_all()
        await client.create("Back?", store=False, previous_response_id=id)  # only the last is known
        (refused,) = await client.hear_all()
    (prompt,) = web.engine.requests[-1].prompts
    assert isinstance(prompt, ChatPrompt)
    assert [turn.content for turn in prompt.messages] == ["Hi", TEXT, "And?", TEXT, "So?"]
    assert (refused["status"], refused["param"]) == (404, "previous_response_id")


async def test_what_is_stored_behind_unstored_turns_brings_them_along(web: Web) -> None:
    async with connect(web) as client:
        await client.create(store=False)
        first = (await client.hear_all())[-1]["response"]["id"]
        await client.create("And?", store=True, previous_response_id=first)
        second = (await client.hear_all())[-1]["response"]["id"]
        await client.create("So?", store=True, previous_response_id=second)
        third = (await client.hear_all())[-1]["response"]
    assert third["previous_response_id"] == second
    answer = await web.client.post(PATH, json={"input": "Now?", "previous_response_id": third["id"]})
    assert answer.status_code == 200, answer.text
    (prompt,) = web.engine.requests[-1].prompts
    assert isinstance(prompt, ChatPrompt)
    assert [turn.content for turn in prompt.messages] == ["Hi", TEXT, "And?", TEXT, "So?", TEXT, "Now?"]
    listed = {id: (await web.client.get(f"{PATH}/{id}/input_items")).json() for id in (second, third["id"])}
    assert [len(items["data"]) for items in listed.values()] == [3, 1]


async def test_a_conversation_that_is_too_large_is_not_kept(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triolet.web.routes.response_socket.MAX_CONVERSATION_BYTES", 1000)
    async with connect(web) as client:
        for text, last in (("Hi", "response.completed"), ("a" * 1000, "error")):
            await client.create(text, store=False)
            id = (await client.hear_all())[-1]["response"]["id"]
            await client.create("And?", store=False, previous_response_id=id)
            end = (await client.hear_all())[-1]
            assert end["type"] == last
    assert (end["status"], end["param"]) == (404, "previous_response_id")


async def test_the_handshakes_fallback_model_replaces_one_that_is_not_here(web: Web) -> None:
    async with connect(web, **{"X-Model-Fallback": "larger, tiny"}) as client:
        await client.create(model="large")
        assert (await client.hear_all())[-1]["response"]["model"] == "tiny"


async def test_a_response_whose_client_left_is_not_stored(web: Web, scripts: SimpleNamespace) -> None:
    async with connect(web) as client:
        await client.create(store=True)  # so that there is a database
        await client.hear_all()
        web.engine.script = scripts.flow
        await client.create(store=True)
        id = json.loads(await client.socket.get_message())["response"]["id"]
    await web.engine.gateway.wait_idle()
    await trio.testing.wait_all_tasks_blocked()
    assert (await web.client.get(f"{PATH}/{id}")).status_code == 404


async def test_one_response_at_a_time(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        await client.create()
        await web.engine.wait_for_requests(1)
        await client.create()
        while (event := json.loads(await client.socket.get_message()))["type"] != "error":
            pass
    assert (event["status"], event["error"]["code"]) == (409, "conflict")
    await web.engine.gateway.wait_idle()  # the running one ended with its socket


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": "Hi", "stream": false}', "stream"),
        ('{"type": "response.create", "input": "Hi", "background": true}', "background"),
        ('{"type": "response.create", "input": "Hi", "generate": false}', "generate"),
        ('{"type": "response.create", "input": "Hi", "unknown": 1}', "unknown"),
    ],
)
async def test_what_is_refused(web: Web, message: str, param: str | None) -> None:
    async with connect(web) as client:
        await client.socket.send_message(message)
        (event,) = await client.hear_all()
        assert (event["status"], event["param"], event["error"]["param"]) == (400, param, param)
        await client.create()  # the socket goes on
        assert (await client.hear_all())[-1]["type"] == "response.completed"


async def test_a_response_that_breaks_has_one_end(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.break_down
    async with connect(web) as client:
        await client.create()
        assert (await client.hear_all())[-1]["response"]["error"]["message"] == "the step failed"
        web.engine.script = scripts.answer
        await client.create()
        assert (await client.hear_all())[-1]["type"] == "response.completed"


async def test_a_draining_server_ends_the_socket_after_its_response(web: Web) -> None:
    async with connect(web) as client:
        await client.create()
        await client.hear_all()
        web.engine.gateway.refuse_new("shutting_down", "the server is shutting down")
        with pytest.raises(ConnectionClosed) as closed:
            await client.socket.get_message()
        assert close_code(closed.value) == 1001


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return structs.replace(settings, api_keys=("one",))

    async def test_a_key_is_asked_for(self, web: Web) -> None:
        async with connect(web, Authorization="Bearer one") as client:
            await client.create()
            assert (await client.hear_all())[-1]["type"] == "response.completed"
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        handshake = upgrade | {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert (await web.client.get(PATH, headers=handshake)).status_code == 401
        assert (await web.client.post(PATH, headers={"Upgrade": "websocket"}, json={"input": "Hi"})).status_code == 401
        assert (await web.client.get(PATH)).status_code == 401
        plain = await web.client.get(PATH, headers={"Authorization": "Bearer one"})
        assert plain.status_code == 426
