"""GET /v1/requests/{id}, the header X-Triolet-Explain and the WebSocket's `explain`, in front of a scripted engine."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from triolet.protocol.explanation import BlockedOn, Standing
from triolet.protocol.requests import Generate
from triolet.protocol.settings import ServeSettings
from triolet.web.generation import explain, generation

from .conftest import ScriptedEngine, Web
from .test_plain_http1 import CHANGING
from .test_websocket import connect

PROMPT = {"prompt": "Hi", "stream": True}
EXPLAIN = {"X-Triolet-Explain": "1", "X-Request-Id": "mine"}
WAITING = Standing(
    state="waiting",
    choices={"waiting": 1},
    position=3,
    blocked_on=BlockedOn(kind="rows", unit="rows", need=1, free=0, total=4),
    eta_ms=1200,
)


def comment(line: str) -> dict[str, Any]:
    assert line.startswith(": explain {")
    said: dict[str, Any] = json.loads(line.removeprefix(": explain "))
    return said


async def test_a_waiting_stream_says_why_and_then_answers(web: Web, scripts: SimpleNamespace) -> None:
    turn = trio.Event()

    async def wait_then_answer(engine: ScriptedEngine, request: Generate) -> None:
        engine.gateway.admitted(request.id, 5)
        await turn.wait()
        engine.standing = None
        await scripts.answer(engine, request)

    web.engine.script, web.engine.standing = wait_then_answer, WAITING
    async with web.client.stream("POST", "/v1/completions", json=PROMPT, headers=EXPLAIN) as response:
        lines = response.aiter_lines()
        found = comment(await anext(lines))
        assert (found["state"], found["position"], found["eta_ms"]) == ("waiting", 3, 1200)
        assert found["blocked_on"]["total"] == 4
        assert found["request_id"] == "mine"
        assert found["usage"]["prompt_tokens"] == 5
        web.engine.standing = msgspec.structs.replace(WAITING, eta_ms=900)  # no news
        asked = (await web.client.get("/v1/requests/mine")).json()
        assert asked == found | {"eta_ms": 900}
        web.engine.standing = msgspec.structs.replace(WAITING, position=1)
        assert await anext(lines) == ""
        assert comment(await anext(lines))["position"] == 1
        turn.set()
        rest = [line async for line in lines if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello, wörld!"
    assert rest[-1] == "data: [DONE]"
    assert all(line.startswith((": explain ", "data: ")) for line in rest)


async def test_a_chat_that_starts_at_once_has_its_role_first(web: Web) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    response = await web.client.post("/v1/chat/completions", json=body, headers=EXPLAIN)
    datas = [line for line in response.text.splitlines() if line.startswith("data: {")]
    assert json.loads(datas[0].removeprefix("data: "))["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    plain = await web.client.post("/v1/chat/completions", json=body)
    assert ": explain" not in plain.text
    assert len(datas) == len([line for line in plain.text.splitlines() if line.startswith("data: {")])


@pytest.mark.parametrize("ends", [False, True])
async def test_a_text_that_is_there_at_once_comes_after_one_explanation(web: Web, ends: bool) -> None:
    turn = trio.Event()

    async def at_once(engine: ScriptedEngine, request: Generate) -> None:
        engine.gateway.started(request.id)
        engine.token(request, "Hello")
        if not ends:
            await turn.wait()
        engine.finish_choice(request)
        engine.gateway.complete(request.id, "stop")

    web.engine.script = at_once
    async with web.client.stream("POST", "/v1/completions", json=PROMPT, headers=EXPLAIN) as response:
        lines = response.aiter_lines()
        assert comment(await anext(lines))["state"] == ("finished" if ends else "decode")
        turn.set()
        assert await anext(lines) == ""
        assert json.loads((await anext(lines)).removeprefix("data: "))["choices"][0]["text"] == "Hello"
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_every_way_of_a_request_explains_in_the_same_bytes(
    web: Web, scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (explain, generation):  # comments come with events alone, never with the clock
        monkeypatch.setattr(module, "EXPLAIN_SECONDS", 60.0)
    web.engine.script = scripts.answer_once_explained
    said: list[bytes] = []
    for way in ({}, {"TE": "trailers"}, {"Content-Type": "application/json; charset=utf-8"}):
        response = await web.client.post("/v1/completions", json=PROMPT, headers=EXPLAIN | way)
        said.append(CHANGING.sub(b"", response.content))
    assert said[0].startswith(b": explain {")
    assert said == said[:1] * 3


async def test_a_refused_request_still_has_its_status(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.refuse
    response = await web.client.post("/v1/completions", json=PROMPT, headers=EXPLAIN)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    found = (await web.client.get("/v1/requests/mine")).json()
    assert (found["state"], found["finish_reason"], found["error"]) == ("finished", "error", "context_length_exceeded")


async def test_an_answer_in_one_piece_has_its_timeline_in_a_header(web: Web) -> None:
    response = await web.client.post("/v1/completions", json={"prompt": "Hi"}, headers=EXPLAIN)
    found = json.loads(response.headers["X-Triolet-Explain"])
    assert (found["state"], found["finish_reason"], found["usage"]["completion_tokens"]) == ("finished", "stop", 5)
    times = [found["timeline"][name] for name in ("tokenized", "started", "first_token", "finished")]
    assert times == sorted(times)
    body = response.json()
    for name in (body["id"], body["id"].removeprefix("cmpl-"), "mine"):
        assert (await web.client.get(f"/v1/requests/{name}")).json() == found


@pytest.mark.parametrize("value", ["yes", "", "2"])
async def test_the_header_is_1_or_0(web: Web, value: str) -> None:
    response = await web.client.post("/v1/completions", json=PROMPT, headers={"X-Triolet-Explain": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Triolet-Explain")
    assert web.engine.requests == []


async def test_a_trace_is_taken_from_its_header_and_nothing_else(web: Web) -> None:
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    for sent in (parent, parent + "-later", "00-xy-1-01", parent + "junk", ""):
        await web.client.post("/v1/completions", json={"prompt": "Hi"}, headers={"traceparent": sent})
    assert [request.traceparent for request in web.engine.requests] == [parent, parent, "", "", ""]


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first", "second"))

    async def test_others_requests_do_not_exist(self, web: Web) -> None:
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
        sent = await web.client.post("/v1/completions", json={"prompt": "Hi"}, headers=first | {"X-Request-Id": "mine"})
        for name in ("mine", sent.json()["id"], web.engine.requests[0].id):
            own, others, nobodys = [
                await web.client.get(f"/v1/requests/{name}", headers=headers) for headers in (first, second, {})
            ]
            assert (own.status_code, others.status_code, nobodys.status_code) == (200, 404, 401)
            assert others.json()["error"]["code"] == "not_found"


async def test_a_websocket_explains_what_runs(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script, web.engine.standing = scripts.wait, WAITING
    async with connect(web) as client:
        await client.say(type="explain", id="r1")
        assert (await client.hear())["error"]["code"] == "not_found"
        await client.create("r1")
        await client.say(type="explain", id="r1")
        frame = await client.hear()
        assert (frame["type"], frame["id"], "seq" in frame) == ("explanation", "r1", False)
        assert frame["explanation"]["position"] == 3
        assert frame["explanation"]["id"] == web.engine.requests[0].id
        await client.say(type="cancel", id="r1")
        assert (await client.hear())["seq"] == 0
