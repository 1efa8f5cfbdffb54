"""What a client hears at a path without a route."""

import pytest

from triolet.web.paths import not_found

KNOWN = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health/ready", "/"}


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//models", "/v1/models"),
        ("/V1/models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
    ],
)
def test_the_nearest_path_is_named(path: str, meant: str) -> None:
    assert not_found(path, KNOWN).message == f"There is nothing at {path!r}. Did you mean {meant}?"


@pytest.mark.parametrize("path", ["/nothing", "/" + "x" * 10_000, "/\r\nX: y"])
def test_a_path_unlike_all_others_is_named_shortly(path: str) -> None:
    error = not_found(path, KNOWN)
    assert (error.code, error.status) == ("not_found", 404)
    assert error.message.endswith(" /openapi.json lists what there is.")
    assert len(error.message) < 200
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/moderations/", "reads text only"),
        ("/v1/audio/speech", "reads text only"),
        ("/api/embeddings", "send /api/embed"),
        ("/v1/messages/batches/1", "Anthropic's API"),
        ("/api/pull", "Ollama's API"),
        ("/v1/chat/completions/chatcmpl-1", "send /v1/responses with store: true"),
    ],
)
def test_endpoints_of_known_apis_have_their_own_words(path: str, words: str) -> None:
    error = not_found(path, KNOWN)
    assert (error.code, error.status) == ("unsupported_endpoint", 404)
    assert words in error.message
