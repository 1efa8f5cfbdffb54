"""POST /v1/responses: whole and streamed, and how a response may end."""

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio

from triolet.protocol.requests import ChatPrompt

from .conftest import Web

BODY: dict[str, Any] = {"model": "tiny", "input": "Hi"}  # Any: JSON
STREAM = BODY | {"stream": True}
TEXT = "Hello, wörld!"
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def events(body: str) -> list[dict[str, Any]]:
    return [json.loads(event.partition("\ndata: ")[2]) for event in body.split("\n\n") if event.startswith("event: ")]


async def test_a_whole_response(web: Web) -> None:
    answer = await web.client.post("/v1/responses", json=BODY)
    body = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert (body["id"], body["status"]) == (f"resp_{web.engine.requests[0].id}", "completed")
    (message,) = body["output"]
    assert message["content"] == [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
    assert body["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    assert (body["temperature"], body["tool_choice"], body["tools"]) == (0.6, "auto", [])
    assert web.engine.gateway.live_requests == 0


@pytest.mark.parametrize("way", [{}, {"TE": "trailers"}])  # straight to the handler, and through Quart
async def test_a_streamed_response(web: Web, way: dict[str, str]) -> None:
    answer = await web.client.post("/v1/responses", json=STREAM, headers=way)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    said = events(answer.text)
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    assert "".join(event["delta"] for event in said if event["type"] == "response.output_text.delta") == TEXT
    assert [event["type"] for event in said if event["type"] in TERMINAL] == ["response.completed"]
    assert said[-1]["response"]["output"][0]["content"][0]["text"] == TEXT
    assert web.engine.gateway.live_requests == 0


async def test_log_probabilities(web: Web) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = (await web.client.post("/v1/responses", json=BODY | asked)).json()
    scores = whole["output"][0]["content"][0]["logprobs"]
    assert [score["token"] for score in scores] == ["Hello", ", ", "wörld", "!"]
    said = events((await web.client.post("/v1/responses", json=STREAM | asked)).text)
    deltas = [event for event in said if event["type"] == "response.output_text.delta"]
    assert [score for delta in deltas for score in delta["logprobs"]] == scores


async def test_a_request_that_the_engine_refuses(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.refuse
    for body in (BODY, STREAM):
        answer = await web.client.post("/v1/responses", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


async def test_a_stream_that_breaks_has_one_end(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.break_down
    said = events((await web.client.post("/v1/responses", json=STREAM)).text)
    assert [event["type"] for event in said if event["type"] in TERMINAL] == ["response.failed"]
    failed = said[-1]["response"]
    assert (failed["status"], failed["error"]) == ("failed", {"code": "server_error", "message": "the step failed"})
    assert failed["output"][0]["content"][0]["text"] == "Hel"


async def test_a_response_whose_client_leaves_is_cancelled(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    data = json.dumps(STREAM).encode()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    head = f"POST /v1/responses HTTP/1.1\r\n{fields}"
    async with await web.connect() as stream:
        await stream.send_all(head.encode() + b"\r\n\r\n" + data)
        received = b""
        while b'"delta":"Hel"' not in received:
            received += await stream.receive_some() or pytest.fail(received.decode())
    with trio.fail_after(10):
        await web.engine.gateway.wait_idle()


async def test_an_explanation(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.answer_once_explained
    explained = {"X-Triolet-Explain": "1"}
    streamed = await web.client.post("/v1/responses", json=STREAM, headers=explained)
    assert streamed.text.startswith("event: response.created\n") or streamed.text.startswith(": explain ")
    assert ": explain " in streamed.text
    assert events(streamed.text)[-1]["type"] == "response.completed"
    found = await web.client.get(f"/v1/requests/resp_{web.engine.requests[0].id}")
    assert found.status_code == 200


async def test_no_model_yet(web: Web) -> None:
    web.engine.ready = None
    answer: httpx.Response = await web.client.post("/v1/responses", json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


async def test_the_oldest_turns_make_room(web: Web) -> None:
    """Here each turn is a token, and the context has 128."""
    turns = [{"role": "system", "content": "Be brief."}]
    for number in range(100):
        turns += [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}."}]
    body = {"input": [*turns, {"role": "user", "content": "And?"}], "max_output_tokens": 8, "truncation": "auto"}
    answer = await web.client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["truncation"]) == (200, "auto")
    (prompt,) = web.engine.requests[-1].prompts
    assert isinstance(prompt, ChatPrompt)
    assert len(prompt.messages) == 120
    assert [turn.content for turn in prompt.messages[:3]] == ["Be brief.", "41?", "41."]
    assert prompt.messages[-1].content == "And?"


async def test_what_fits_is_not_truncated(web: Web) -> None:
    turns = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    await web.client.post("/v1/responses", json={"input": turns, "truncation": "auto"})
    (prompt,) = web.engine.requests[-1].prompts
    assert isinstance(prompt, ChatPrompt)
    assert [turn.content for turn in prompt.messages] == ["one", "two"]
