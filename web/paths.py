"""What to say at a path without a route: the nearest that has one, or that an endpoint is not implemented. Pure.

All of it is 404: official clients repeat a request after a 501, and programs that try which endpoints there are take
404 for "not here" and use another.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from ..protocol.errors import ApiError

MAX_COMPARED = 100  # characters: comparing takes the square of them
SIMILAR: Final = 0.8

# The first matches. Whatever lies below a name that ends with a slash belongs to it.
_ENDPOINTS: Final = (
    ("/v1/chat/completions/", "OpenAI's API (stored answers)", "send /v1/responses with store: true"),
    ("/v1/messages/batches", "Anthropic's API", "send /v1/messages for each"),
    ("/v1/complete", "Anthropic's API", "send /v1/completions"),
    *(
        (f"/api/{name}", "Ollama's API", "the models are folders that are named when the server starts")
        for name in ("pull", "push", "create", "copy", "delete", "blobs/")
    ),
    ("/api/embeddings", "Ollama's API", "send /api/embed"),
    *(
        (f"/v1/{name}", "OpenAI's API", "this server reads text only")
        for name in ("moderations", "audio/", "images/", "videos", "realtime")
    ),
    *(
        (f"/v1/{name}", "OpenAI's API", "this server has no such store")
        for name in ("uploads", "fine_tuning/", "vector_stores", "assistants", "threads")
    ),
)


def not_found(path: str, known: Collection[str]) -> ApiError:
    """`known`: the paths of all routes without parameters."""
    shown = repr(path[:MAX_COMPARED])
    tidy = "/" + "/".join([part for part in path.split("/") if part])
    for endpoint, api, instead in _ENDPOINTS:
        if tidy == endpoint or tidy.startswith(endpoint.rstrip("/") + "/"):
            message = f"{shown} belongs to {api} and is not implemented: {instead}. docs/api.md lists what is."
            return ApiError("unsupported_endpoint", message)
    near = _nearest(tidy, known)
    hint = f"Did you mean {near}?" if near else "/openapi.json lists what there is."
    return ApiError("not_found", f"There is nothing at {shown}. {hint}")


def _nearest(tidy: str, known: Collection[str]) -> str | None:
    """The route that a client with a slightly wrong base address or spelling meant."""
    for guess in (tidy, tidy.lower(), "/v1" + tidy, tidy.removeprefix("/v1")):
        if guess in known:
            return guess
    if len(tidy) > MAX_COMPARED:
        return None
    return next(iter(get_close_matches(tidy, known, 1, SIMILAR)), None)
