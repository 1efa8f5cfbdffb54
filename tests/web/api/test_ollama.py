"""Ollama's endpoints over HTTP: models, errors, and what they share with the other dialects."""

import json
from typing import Any

import pytest

from triolet.protocol.requests import Generate

from .conftest import WORDS, ScriptedEngine, Scripts, Web

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "Hi"}
TEXT = "".join(WORDS)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_a_chat_streams_unless_told_not_to(web: Web) -> None:
    response = await web.client.post("/api/chat", json=CHAT)
    assert response.headers["content-type"] == "application/x-ndjson"
    *pieces, last = lines(response.text)
    assert "".join(piece["message"]["content"] for piece in pieces) == TEXT
    assert (last["done"], last["done_reason"], last["prompt_eval_count"]) == (True, "stop", 5)
    response = await web.client.post("/api/chat", json=CHAT | {"stream": False})
    assert response.json()["message"] == {"role": "assistant", "content": TEXT}


async def test_a_generation(web: Web) -> None:
    response = await web.client.post("/api/generate", json=PROMPT)
    assert "".join(piece["response"] for piece in lines(response.text)) == TEXT
    response = await web.client.post("/api/generate", json=PROMPT | {"stream": False, "raw": True})
    assert response.json()["response"] == TEXT


async def test_a_model_is_loaded_without_a_request(web: Web) -> None:
    response = await web.client.post("/api/generate", json={"model": "tiny"})
    assert (response.json()["done_reason"], response.json()["response"]) == ("load", "")
    assert not web.engine.requests
    refused = await web.client.post("/api/generate", json={"model": "tiny"}, headers={"X-Triolet-Explain": "1"})
    assert refused.status_code == 400
    assert "only loads the model" in refused.json()["error"]


async def test_the_model_is_listed_shown_and_running(web: Web) -> None:
    (listed,) = (await web.client.get("/api/tags")).json()["models"]
    assert (listed["name"], listed["size"], listed["details"]["format"]) == ("tiny:latest", 1, "safetensors")
    (running,) = (await web.client.get("/api/ps")).json()["models"]
    assert running.items() > listed.items()
    assert (running["context_length"], running["size_vram"]) == (128, 0)
    for name in ({"model": "tiny"}, {"model": "tiny:latest"}, {"name": "tiny", "verbose": True}):
        shown = (await web.client.post("/api/show", json=name)).json()
        assert shown["model_info"]["llama.context_length"] == 128
        assert shown["capabilities"] == ["completion"]
        assert shown["parameters"] == "temperature 0.6\ntop_k 20"
    fallback = {"X-Model-Fallback": "larger, tiny"}
    assert (await web.client.post("/api/show", json={"model": "large"}, headers=fallback)).status_code == 200
    assert (await web.client.get("/api/version")).json()["version"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/api/chat", CHAT | {"top_a": 1}, 400, "Unknown parameter: top_a"),
        ("POST", "/api/generate", PROMPT | {"model": "gone"}, 404, "There is no model 'gone' here"),
        ("POST", "/api/show", {"model": "gone"}, 404, "There is no model 'gone' here"),
        ("POST", "/api/pull", {"model": "tiny"}, 404, "named when the server starts"),
        ("POST", "/api/embed", {"model": "tiny", "input": "Hi"}, 400, "It makes no vectors"),
        ("POST", "/api/embeddings", {"model": "tiny"}, 404, "send /api/embed"),
        ("DELETE", "/api/delete", {"model": "tiny"}, 404, "the models are folders"),
        ("GET", "/api/chat", None, 405, "use POST"),
        ("GET", "/api/chats", None, 404, "Did you mean /api/chat?"),
    ],
)
async def test_a_refusal_has_ollamas_form(
    web: Web, method: str, path: str, body: dict[str, Any] | None, status: int, words: str
) -> None:
    response = await web.client.request(method, path, json=body)
    assert response.status_code == status
    assert response.json().keys() == {"error"}
    assert words in response.json()["error"]


async def test_while_the_model_is_loaded_clients_are_told_to_come_back(web: Web) -> None:
    web.engine.ready = web.engine.worker.ready = None
    web.engine.worker.lose("loading", "the model is being loaded")
    for method, path, body in (("POST", "/api/chat", CHAT), ("GET", "/api/tags", None), ("POST", "/api/show", {})):
        response = await web.client.request(method, path, json=body)
        assert response.status_code == 503
        assert "the model is being loaded" in response.json()["error"]
        assert response.headers["retry-after"]
    assert (await web.client.get("/api/version")).status_code == 200


async def test_a_stream_that_breaks_ends_with_an_error(web: Web, scripts: Scripts) -> None:
    web.engine.script = scripts.break_down
    response = await web.client.post("/api/chat", json=CHAT)
    assert response.status_code == 200
    *_, last = lines(response.text)
    assert last == {"error": "the step failed"}


async def test_a_cancelled_stream_has_one_last_piece(web: Web) -> None:
    async def stop(engine: ScriptedEngine, request: Generate) -> None:
        engine.gateway.started(request.id)
        engine.token(request, "Hel")
        engine.gateway.complete(request.id, "cancelled")

    web.engine.script = stop
    *pieces, last = lines((await web.client.post("/api/chat", json=CHAT)).text)
    assert [piece["done"] for piece in pieces] == [False]
    assert (last["done"], last["done_reason"]) == (True, "stop")


async def test_an_explained_stream_begins_with_an_explanation(web: Web) -> None:
    response = await web.client.post("/api/chat", json=CHAT, headers={"x-triolet-explain": "1"})
    first, *rest = lines(response.text)
    assert first["triolet_explain"]["id"] == web.engine.requests[0].id
    assert first["message"]["content"] == ""
    assert "".join(piece["message"]["content"] for piece in rest) == TEXT


async def test_a_refused_prompt_is_a_status(web: Web, scripts: Scripts) -> None:
    web.engine.script = scripts.refuse
    for stream in (True, False):
        response = await web.client.post("/api/chat", json=CHAT | {"stream": stream})
        assert (response.status_code, response.json()) == (400, {"error": "too long"})
