"""Anthropic's endpoints over HTTP: their errors, their counts, and what they share with the other dialects."""

from typing import Any

import pytest

from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings

from .conftest import WORDS, Scripts, Web

QUESTION: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
STREAM = QUESTION | {"stream": True}
TEXT = "".join(WORDS)


@pytest.fixture
def settings() -> ServeSettings:
    return ServeSettings(
        engine=EngineSettings(model="tiny"), limits=LimitSettings(max_body_bytes=4096), api_keys=("key",)
    )


async def test_a_message(web: Web) -> None:
    response = await web.client.post("/v1/messages?beta=true", json=QUESTION, headers={"x-api-key": "key"})
    assert response.status_code == 200
    message = response.json()
    (request,) = web.engine.requests
    assert message["id"] == f"msg_{request.id}"
    assert message["content"] == [{"type": "text", "text": TEXT}]
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == 5
    assert response.headers["request-id"]


async def test_a_stream(web: Web) -> None:
    response = await web.client.post("/v1/messages", json=STREAM, headers={"x-api-key": "key"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.startswith("event: message_start\n")
    assert response.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert response.text.count("text_delta") == len(WORDS)


async def test_a_count(web: Web) -> None:
    body = {"messages": QUESTION["messages"], "system": "Be kind"}
    response = await web.client.post("/v1/messages/count_tokens", json=body, headers={"x-api-key": "key"})
    assert response.json() == {"input_tokens": 2}
    fallback = {"x-api-key": "key", "X-Model-Fallback": "larger, tiny"}
    response = await web.client.post("/v1/messages/count_tokens", json=body | {"model": "large"}, headers=fallback)
    assert response.json() == {"input_tokens": 2}


@pytest.mark.parametrize(
    ("path", "request_", "status", "kind", "code"),
    [
        ("/v1/messages", {"json": QUESTION | {"top_a": 1}}, 400, "invalid_request_error", "unknown_parameter"),
        ("/v1/messages", {"json": QUESTION | {"model": "gone"}}, 404, "not_found_error", "model_not_found"),
        ("/v1/messages", {"json": QUESTION | {"system": "a" * 5000}}, 413, "request_too_large", "content_too_large"),
        ("/v1/messages", {"content": b"{}"}, 415, "invalid_request_error", "unsupported_media_type"),
        ("/v1/messages/batches", {"json": {}}, 404, "not_found_error", "unsupported_endpoint"),
        ("/v1/messages/count_tokens", {"json": {}}, 400, "invalid_request_error", "invalid_value"),
    ],
)
async def test_a_refusal_has_anthropics_form(
    web: Web, path: str, request_: dict[str, Any], status: int, kind: str, code: str
) -> None:
    response = await web.client.post(path, headers={"x-api-key": "key", "x-request-id": "mine"}, **request_)
    assert response.status_code == status
    body = response.json()
    assert (body["type"], body["request_id"]) == ("error", "mine")
    assert (body["error"]["type"], body["error"]["details"]["error_code"]) == (kind, code)


async def test_a_wrong_key_and_a_wrong_method(web: Web) -> None:
    wrong = await web.client.post("/v1/messages", json=QUESTION, headers={"x-api-key": "other"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    wrong = await web.client.get("/v1/messages", headers={"x-api-key": "key"})
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")


@pytest.mark.parametrize("body", [QUESTION, STREAM])
async def test_a_prompt_that_does_not_fit_says_so_in_words_that_clients_look_for(
    web: Web, scripts: Scripts, body: dict[str, Any]
) -> None:
    web.engine.script = scripts.refuse
    response = await web.client.post("/v1/messages", json=body, headers={"x-api-key": "key"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("prompt is too long: ")


async def test_a_stream_that_breaks_ends_with_an_error_event(web: Web, scripts: Scripts) -> None:
    web.engine.script = scripts.break_down
    headers = {"x-api-key": "key", "x-request-id": "mine"}
    response = await web.client.post("/v1/messages", json=STREAM, headers=headers)
    assert response.status_code == 200
    assert response.text.rpartition("event: ")[2] == (
        'error\ndata: {"type":"error","error":{"type":"api_error","message":"the step failed",'
        '"details":{"error_code":"engine_error","param":null}},"request_id":"mine"}\n\n'
    )


async def test_while_the_model_is_loaded_clients_are_told_to_come_back(web: Web) -> None:
    web.engine.ready = web.engine.worker.ready = None
    web.engine.worker.lose("loading", "the model is being loaded")
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = await web.client.post(path, json=QUESTION, headers={"x-api-key": "key"})
        assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")
        assert response.headers["retry-after"]


async def test_the_other_dialects_keep_their_form(web: Web) -> None:
    response = await web.client.post("/v1/chat/completions", json={}, headers={"x-api-key": "key"})
    assert set(response.json()) == {"error"}


async def test_an_answers_id_finds_its_explanation(web: Web) -> None:
    headers = {"x-api-key": "key"}
    message = (await web.client.post("/v1/messages", json=QUESTION, headers=headers)).json()
    found = await web.client.get(f"/v1/requests/{message['id']}", headers=headers)
    assert found.json()["state"] == "finished"


async def test_an_explained_stream_begins_with_a_comment(web: Web) -> None:
    headers = {"x-api-key": "key", "x-triolet-explain": "1"}
    response = await web.client.post("/v1/messages", json=STREAM, headers=headers)
    assert response.text.startswith(": explain {")
    assert response.text.count("message_stop") == 2  # the event's name and its type
