"""GET /openapi.json: OpenAPI 3.1, generated from the Structs that validate requests and build responses."""

from importlib.metadata import version

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import REGISTRY, ErrorBody
from ...protocol.explanation import Explanation
from ...protocol.openai_requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from ...protocol.openai_responses import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Detokenization,
    ModelCard,
    ModelList,
    Tokenization,
)
from ..asgi import Application
from ..openai.explain import EXPLAIN_HEADER

Schema = dict[str, object]

BODIES = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)
RESULTS = (
    ChatCompletion,
    ChatChunk,
    Completion,
    CompletionChunk,
    ModelList,
    ModelCard,
    Tokenization,
    Detokenization,
    Explanation,
)


def describe(title: str = "Triolet") -> Schema:
    """The whole document."""
    _, components = msgspec.json.schema_components((*BODIES, *RESULTS, ErrorBody), ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version("triolet"), "license": {"name": "Apache-2.0"}},
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/chat/completions": _post("Answer a conversation.", ChatBody, ChatCompletion, stream=ChatChunk),
            "/v1/completions": _post("Continue a text.", CompletionBody, Completion, stream=CompletionChunk),
            "/v1/models": _get("The models that are served.", ModelList),
            "/v1/models/{model}": _get("One model.", ModelCard, path_parameter="model"),
            "/v1/requests/{id}": _get(
                "Why a request is where it is. `id` is the server's, the answer's (`chatcmpl-…`) or an X-Request-Id.",
                Explanation,
                path_parameter="id",
            ),
            "/tokenize": _post("The token ids of a text or a conversation.", TokenizeBody, Tokenization),
            "/detokenize": _post("The text of token ids.", DetokenizeBody, Detokenization),
            "/health/live": _get("The process answers.", None, open_to_all=True),
            "/health/ready": _get("The engine makes progress.", None),
            "/health": _get("The same as /health/ready.", None),
            "/version": _get("Versions of the server and its parts.", None),
            "/metrics": _get("Metrics in the Prometheus text format.", None, media_type="text/plain"),
        },
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


_EXPLAIN: Schema = {
    "name": EXPLAIN_HEADER,
    "in": "header",
    "description": (
        "1: a stream carries comments `: explain` with an Explanation until its first text, and an answer that is not "
        "streamed has one in a header of this name."
    ),
    "schema": {"enum": ["0", "1"]},
}
_REFERENCE = "#/components/schemas/{name}"


def _content(struct: type[msgspec.Struct] | None, media_type: str = "application/json") -> Schema:
    schema = {} if struct is None else {"$ref": _REFERENCE.format(name=struct.__name__)}
    return {media_type: {"schema": schema}}


def _operation(summary: str, content: Schema, **more: object) -> Schema:
    """One operation, with every error status and the error codes that it can carry."""
    codes: dict[int, list[str]] = {}
    for code, kind in REGISTRY.items():
        codes.setdefault(kind.status, []).append(code)
    responses: Schema = {"200": {"description": "OK", "content": content}}
    for status in sorted(codes):
        responses[str(status)] = {"description": ", ".join(codes[status]), "content": _content(ErrorBody)}
    return {"summary": summary, "responses": responses, **more}


def _get(
    summary: str,
    result: type[msgspec.Struct] | None,
    *,
    path_parameter: str = "",
    media_type: str = "application/json",
    open_to_all: bool = False,
) -> Schema:
    more: Schema = {"security": [{}]} if open_to_all else {}
    if path_parameter:
        more["parameters"] = [{"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}]
    return {"get": _operation(summary, _content(result, media_type), **more)}


def _post(
    summary: str,
    body: type[msgspec.Struct],
    result: type[msgspec.Struct],
    *,
    stream: type[msgspec.Struct] | None = None,
) -> Schema:
    content, more = _content(result), Schema(requestBody={"required": True, "content": _content(body)})
    if stream is not None:
        more["parameters"] = [_EXPLAIN]
        content["text/event-stream"] = {
            "schema": {  # of one event, as OpenAPI 3.2 defines sequences
                "type": "object",
                "properties": {"data": {"type": "string"}},
                "required": ["data"],
                "description": f"Events `data: {stream.__name__}`, the last `data: [DONE]`.",
            }
        }
    return {"post": _operation(summary, content, **more)}


def register(app: Application) -> None:
    document = msgspec.json.encode(describe())

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(document, content_type="application/json")
