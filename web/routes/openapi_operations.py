"""The operations of /openapi.json: what a method of a path takes, and what it answers."""

import msgspec

from ...protocol.errors import REGISTRY, ErrorBody
from ...protocol.ollama_responses import OllamaError
from ...protocol.openai_batches import FILE_SECONDS, FileObject
from ..exchange import EXPLAIN_HEADER
from .openapi_schemas import QUERY, Schema, reference

_EXPLAIN: Schema = {
    "name": EXPLAIN_HEADER,
    "in": "header",
    "description": (
        "1: a stream begins with an Explanation in a comment `: explain` and has more until its first text. An answer "
        "that is not streamed has one in a header of this name."
    ),
    "schema": {"type": "string", "enum": ["0", "1"]},
}


def _content(struct: type[msgspec.Struct] | None, media_type: str = "application/json") -> Schema:
    return {media_type: {"schema": {} if struct is None else reference(struct)}}


def _operation(
    name: str, summary: str, success: Schema, error: type[msgspec.Struct] = ErrorBody, **more: object
) -> Schema:
    """One operation, with every error status and the error codes that it can carry."""
    codes: dict[int, list[str]] = {}
    for code, kind in REGISTRY.items():
        codes.setdefault(kind.status, []).append(code)
    responses = dict(success)
    for status in sorted(codes):
        responses[str(status)] = {"description": ", ".join(codes[status]), "content": _content(error)}
    return {"operationId": name, "summary": summary, "responses": responses, **more}


def _ok(content: Schema) -> Schema:
    return {"200": {"description": "OK", "content": content}}


def get(
    name: str,
    summary: str,
    result: type[msgspec.Struct] | None,
    *,
    path_parameter: str = "",
    query: tuple[str, ...] = (),
    method: str = "get",
    media_type: str = "application/json",
    open_to_all: bool = False,
    error: type[msgspec.Struct] = ErrorBody,
) -> Schema:
    more: Schema = {"security": [{}]} if open_to_all else {}
    parameters: list[Schema] = [{"name": name, "in": "query", "schema": QUERY[name]} for name in query]
    if path_parameter:
        parameters.append({"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}})
    if parameters:
        more["parameters"] = parameters
    return {method: _operation(name, summary, _ok(_content(result, media_type)), error, **more)}


def post(
    name: str,
    summary: str,
    body: type[msgspec.Struct],
    result: type[msgspec.Struct] | None,
    *,
    media_type: str = "application/json",
    stream: Schema | None = None,
    error: type[msgspec.Struct] = ErrorBody,
) -> Schema:
    """`stream`: the content types of a streamed answer."""
    content, more = _content(result, media_type), Schema(requestBody={"required": True, "content": _content(body)})
    if stream is not None:
        more["parameters"] = [_EXPLAIN]
        content |= stream
    return {"post": _operation(name, summary, _ok(content), error, **more)}


def chunks(chunk: type[msgspec.Struct]) -> Schema:
    done: Schema = {"type": "string", "const": "[DONE]"}
    return _events(
        {"data": {"anyOf": [done, _in_text(chunk, ErrorBody)]}},
        f"Events `data: {chunk.__name__}`, the last `data: [DONE]`. If the answer fails after its start, the last is "
        "`data: ErrorBody`.",
    )


def named_events(schema: str) -> Schema:
    """`schema`: of the events' data."""
    names: Schema = {"type": "string", "description": "The `type` of the data."}
    content = {"type": "string", "contentMediaType": "application/json", "contentSchema": reference(schema)}
    return _events({"event": names, "data": content}, "Events with a name. The last says how the answer ended.")


def lines(answer: type[msgspec.Struct]) -> Schema:
    """`answer`: of each line but that of a failure."""
    line = {"anyOf": [reference(answer), reference(OllamaError)], "description": "Of each line. The last is `done`."}
    return {"application/x-ndjson": {"schema": line}}


def _events(fields: Schema, description: str) -> Schema:
    """One event, as OpenAPI 3.2 defines sequences."""
    event = {"type": "object", "properties": fields, "required": [*fields], "description": description}
    return {"text/event-stream": {"schema": event}}


def _in_text(*structs: type[msgspec.Struct]) -> Schema:
    content = {"anyOf": [reference(struct) for struct in structs]}
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": content}


UPLOAD: Schema = {
    "post": _operation(
        "create_file",
        "Upload a file of requests.",
        _ok(_content(FileObject)),
        requestBody={
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "purpose": {"type": "string", "enum": ["batch"]},
                            "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                            "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": FILE_SECONDS},
                        },
                        "required": ["file", "purpose"],
                    }
                }
            },
        },
    )
}

RESPONSE_SOCKET: Schema = {
    "get": _operation(
        "open_response_socket",
        "One response after another over a WebSocket.",
        {"101": {"description": "A WebSocket. The client sends CreateResponse with `type: response.create`."}},
        description="OpenAPI has no WebSockets. The schemas `CreateResponse` and `ResponseStreamEvent` describe its "
        "messages.",
    )
}
STREAM: Schema = {
    "get": _operation(
        "open_stream",
        "Many requests over one WebSocket.",
        {"101": {"description": "A WebSocket. Its text messages are ClientFrame one way and ServerFrame the other."}},
        description="OpenAPI has no WebSockets: open it with a WebSocket client. The schemas `ClientFrame` and "
        "`ServerFrame` describe its messages.",
    )
}
