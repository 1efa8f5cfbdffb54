"""Chat and completions over HTTP, whole and streamed, and how a request may end."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from triolet.protocol.settings import ServeSettings

from .conftest import Web

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = "Hello, wörld!"


def events(body: str) -> list[dict[str, Any]]:
    lines = [line for line in body.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


async def test_a_chat(web: Web) -> None:
    response = await web.client.post("/v1/chat/completions", json=CHAT)
    body = response.json()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert body["id"] == f"chatcmpl-{web.engine.requests[0].id}"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": TEXT}
    assert body["usage"]["total_tokens"] == 10
    assert web.engine.gateway.live_requests == 0


async def test_a_streamed_chat(web: Web) -> None:
    response = await web.client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 2})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    chunks = events(response.text)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:2]] == [{"role": "assistant", "content": ""}] * 2
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == TEXT
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
        assert mine[-1]["delta"] == {}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert response.text.endswith("\n\ndata: [DONE]\n\n")


async def test_a_completion_of_two_prompts(web: Web) -> None:
    response = await web.client.post("/v1/completions", json={"prompt": ["a", "b"], "n": 2, "logprobs": 1})
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert {choice["text"] for choice in choices} == {TEXT}
    assert choices[0]["logprobs"]["text_offset"] == [0, 5, 7, 12]


async def test_usage_comes_last_when_asked_for(web: Web) -> None:
    body = {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events((await web.client.post("/v1/completions", json=body)).text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 5)


async def test_usage_in_every_chunk(web: Web) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "abc", "stream": True, "stream_options": options}
    chunks = events((await web.client.post("/v1/completions", json=body)).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 5]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {5}  # what the engine counted


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_gets_a_status(web: Web, scripts: SimpleNamespace, stream: bool) -> None:
    web.engine.script = scripts.refuse
    response = await web.client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


async def test_a_stream_that_breaks_says_so_and_has_no_done(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.break_down
    response = await web.client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.status_code == 200
    *_, token, error = events(response.text)
    assert token["choices"][0]["delta"] == {"content": "Hel"}
    assert error["error"]["code"] == "engine_error"
    assert "[DONE]" not in response.text


async def test_a_whole_answer_that_breaks_is_an_error(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.break_down
    response = await web.client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")


async def test_no_place_is_429_with_retry_after(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.wait
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(lambda: web.client.post("/v1/chat/completions", json=CHAT, timeout=None))
        await web.engine.wait_for_requests(8)
        response = await web.client.post("/v1/chat/completions", json=CHAT)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "server_overloaded")
        assert response.headers["retry-after"] == "1"
        nursery.cancel_scope.cancel()


async def test_a_draining_engine_is_503_with_retry_after(web: Web) -> None:
    web.engine.gateway.refuse_new("shutting_down", "the server is stopping")
    response = await web.client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_model_that_is_not_here_is_replaced_by_its_fallback(web: Web, path: str) -> None:
    body = {"model": "large", **({"prompt": "Hi"} if path == "/v1/completions" else {"messages": CHAT["messages"]})}
    refused = await web.client.post(path, json=body, headers={"X-Model-Fallback": "larger,"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    response = await web.client.post(path, json=body, headers={"X-Model-Fallback": "larger, tiny"})
    assert (response.status_code, response.json()["model"]) == (200, "tiny")


async def test_without_a_model_requests_are_503(web: Web) -> None:
    web.engine.ready = None
    response = await web.client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")
    assert "retry-after" in response.headers


class TestSilence:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, keep_alive_interval=0.01)

    async def test_a_silent_stream_carries_comments(self, web: Web, scripts: SimpleNamespace) -> None:
        web.engine.script = scripts.wait
        async with web.client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            parts = response.aiter_raw()
            assert await anext(parts) == b": keep-alive\n\n"  # still queued: no status of the engine's is known
            assert await anext(parts) == b": keep-alive\n\n"
            web.engine.gateway.started(web.engine.requests[0].id)
            last = b""
            async for part in parts:
                if b'"role":"assistant"' in part:
                    web.engine.gateway.complete(web.engine.requests[0].id, "stop")
                last = part
            assert last.endswith(b"data: [DONE]\n\n")
