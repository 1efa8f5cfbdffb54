"""What clients hear of their key's limits: 429 in each dialect's form, and what is left."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from triolet.protocol.settings import KeySettings, ServeSettings

from . import test_response_socket, test_websocket
from .conftest import Web

HEADERS = {"Authorization": "Bearer alices-key"}
QUESTION: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}  # Any: JSON
WORDS = "the API key alice may use 1 requests a minute (requests_per_minute) and has used them; try again in 60 s"


@pytest.fixture
def settings(settings: ServeSettings, tmp_path: Path) -> ServeSettings:
    digest = sha256(b"alices-key").hexdigest()
    alice = KeySettings(sha256=digest, name="alice", requests_per_minute=1, tokens_per_minute=100)
    return structs.replace(settings, api_keys=("free",), key_tables=(alice,), data=str(tmp_path / "data"))


@pytest.fixture
async def spent(web: Web) -> Web:
    """Alice has had her request."""
    answer = await web.client.post("/v1/chat/completions", json=QUESTION, headers=HEADERS)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert 59 < float(answer.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
    used = answer.json()["usage"]["total_tokens"]
    assert used > 0
    assert answer.headers["x-ratelimit-limit-tokens"] == "100"
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(100 - used)
    return web


@pytest.mark.parametrize("way", [{}, {"TE": "trailers"}])  # straight to the handler, and through Quart
@pytest.mark.parametrize(
    ("path", "body", "form"),
    [
        (
            "/v1/chat/completions",
            QUESTION,
            {"error": {"message": WORDS, "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}},
        ),
        (
            "/v1/responses",
            {"model": "tiny", "input": "Hi"},
            {"error": {"message": WORDS, "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}},
        ),
        (
            "/v1/messages",
            QUESTION | {"max_tokens": 9, "stream": True},
            {"type": "error", "error": {"type": "rate_limit_error", "message": WORDS}},
        ),
        ("/api/chat", QUESTION, {"error": WORDS}),
    ],
)
async def test_a_refusal_has_its_dialects_form(
    spent: Web, path: str, body: dict[str, Any], form: dict[str, Any], way: dict[str, str]
) -> None:
    answer = await spent.client.post(path, json=body, headers=HEADERS | way)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    said = answer.json()
    assert {name: said[name] for name in form} == form | {
        name: said[name] | form[name] for name in form if isinstance(form[name], dict)
    }
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(spent.engine.requests) == 1
    free = await spent.client.post(path, json=body, headers={"Authorization": "Bearer free"})
    assert free.status_code == 200
    assert not any(name.startswith("x-ratelimit") for name in free.headers)


async def test_a_refusal_on_a_socket(spent: Web) -> None:
    async with test_websocket.connect(spent, **HEADERS) as client:
        await client.create("a")
        (failed,) = await client.hear_all("a")
    assert (failed["type"], failed["error"]["code"], failed["retry_after"]) == ("failed", "rate_limit_exceeded", 60)
    assert failed["error"]["message"] == WORDS


async def test_a_refusal_on_a_socket_of_responses(spent: Web) -> None:
    async with test_response_socket.connect(spent, **HEADERS) as client:
        await client.create()
        (refused,) = await client.hear_all()
    assert WORDS in json.dumps(refused)
    assert refused["status"] == 429


async def test_a_wrong_key_hears_no_limits(web: Web) -> None:
    answer = await web.client.post("/v1/chat/completions", json=QUESTION, headers={"Authorization": "Bearer alice"})
    assert answer.status_code == 401
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)
