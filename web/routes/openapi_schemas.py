"""The schemas of /openapi.json: what msgspec writes of the Structs, stated so that generators of clients understand it.

Generators take a field with a `default` for one that is always there, an enum for words of one type, and an object
without properties for an empty one. Types that hold null alone are lost. So defaults are left out, and parameters that
may only be null; words have a type; objects with any fields say so; and of what the server sends, every field that is
never left out is required. Beside them, the schemas of what a query may say.
"""

from inspect import cleandoc
from typing import Any, cast

import msgspec
from msgspec import Struct

from ...protocol.adapters import LoadAdapterBody, UnloadAdapterBody
from ...protocol.anthropic_requests import CountTokensBody, MessagesBody
from ...protocol.anthropic_responses import AnthropicError, AnthropicMessage, MessageEvent, TokenCount
from ...protocol.errors import ErrorBody
from ...protocol.explanation import Explanation
from ...protocol.ollama_requests import OllamaChatBody, OllamaEmbedBody, OllamaGenerateBody, OllamaShowBody
from ...protocol.ollama_responses import (
    OllamaChatAnswer,
    OllamaEmbeddings,
    OllamaError,
    OllamaGenerateAnswer,
    OllamaModelPage,
    OllamaModels,
    OllamaRunningModels,
    OllamaVersion,
)
from ...protocol.openai_batches import BatchList, BatchObject, CreateBatch, FileDeleted, FileList, FileObject
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
    TokenizerInfo,
)
from ...protocol.pooling_requests import ClassifyBody, EmbeddingBody, RerankBody, ScoreBody
from ...protocol.pooling_responses import ClassList, EmbeddingList, Ranking, ScoreList
from ...protocol.response_answers import (
    InputTokenCount,
    ResponseDeleted,
    ResponseItemList,
    ResponseObject,
    StreamedEvent,
)
from ...protocol.response_requests import CreateResponse
from ...protocol.served_models import AliasBody, ModelBody, ModelDone, ServedModelList
from ...protocol.stream_frames import FromClient, ToClient
from ...protocol.usage import UsageList

Schema = dict[str, Any]  # Any: JSON values

RECEIVED = (
    *(ChatBody, CompletionBody, MessagesBody, CountTokensBody, CreateResponse, CreateBatch),
    *(TokenizeBody, DetokenizeBody, LoadAdapterBody, UnloadAdapterBody, ModelBody, AliasBody),
    *(OllamaChatBody, OllamaEmbedBody, OllamaGenerateBody, OllamaShowBody),
    *(EmbeddingBody, ClassifyBody, ScoreBody, RerankBody),
)
SENT = (
    ChatCompletion,
    ChatChunk,
    Completion,
    CompletionChunk,
    AnthropicMessage,
    AnthropicError,
    TokenCount,
    *(OllamaChatAnswer, OllamaEmbeddings, OllamaGenerateAnswer, OllamaError),
    *(OllamaModels, OllamaModelPage, OllamaRunningModels, OllamaVersion),
    *(EmbeddingList, ClassList, ScoreList, Ranking),
    ModelList,
    ModelCard,
    Tokenization,
    Detokenization,
    TokenizerInfo,
    ServedModelList,
    ModelDone,
    Explanation,
    ResponseObject,
    FileObject,
    FileList,
    FileDeleted,
    BatchObject,
    BatchList,
    UsageList,
    InputTokenCount,
    ResponseDeleted,
    ResponseItemList,
    ErrorBody,
)
_REFERENCE = "#/components/schemas/{name}"
QUERY: dict[str, Schema] = {  # parameters of lists
    "limit": {"type": "integer", "minimum": 1, "description": "How many entries a page has at most."},
    "after": {"type": "string", "description": "What is there already: the `last_id` of the page before."},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "purpose": {"type": "string", "enum": ["batch", "batch_output"]},
    "group_by": {"type": "string", "enum": ["day", "hour", "model", "none"]},
    "start": {"type": "integer", "minimum": 0, "description": "Requests that ended from this Unix time on."},
    "end": {"type": "integer", "minimum": 0, "description": "Requests that ended before this Unix time."},
    "key_digest": {"type": "string", "description": "With an operator key: the requests of this API key."},
}


def reference(struct: type[Struct] | str) -> Schema:
    return {"$ref": _REFERENCE.format(name=struct if isinstance(struct, str) else struct.__name__)}


def schemas() -> Schema:
    """Every schema by its name. Unions: `ClientFrame` and `ServerFrame` of a WebSocket, and events."""
    client_frame, received = _components(FromClient, *RECEIVED)
    server_frame, sent = _components(ToClient, *SENT)
    streamed, events = _components(StreamedEvent)
    message, message_events = _components(MessageEvent)
    sent |= events | message_events
    received["Create"]["properties"]["request"] = {"anyOf": [reference(ChatBody), reference(CompletionBody)]}
    for schema in sent.values():
        always = [name for name, field in schema["properties"].items() if "default" in field]
        schema["required"] = [*schema.get("required", ()), *always]
    unions = {"ClientFrame": client_frame, "ServerFrame": server_frame}
    unions |= {"ResponseStreamEvent": streamed, "MessageEvent": message}
    found = received | sent | unions
    return {name: _stated(schema) for name, schema in found.items()}


def _components(union: Any, *structs: type[Struct]) -> tuple[Schema, Schema]:  # Any: a union of types
    """The schema of `union`, and all that it and `structs` refer to."""
    (first, *_), components = msgspec.json.schema_components((union, *structs), ref_template=_REFERENCE)
    return first, components


def _stated(node: Any) -> Any:  # Any: JSON values
    match node:
        case dict():
            fields = {name: _stated(value) for name, value in cast("Schema", node).items()}
            if isinstance(properties := fields.get("properties"), dict):
                fields["properties"] = _named(cast("dict[str, Schema]", properties))
            elif fields.get("type") == "object":
                fields.setdefault("additionalProperties", {})
            if "enum" in fields and all(isinstance(word, str) for word in cast("list[object]", fields["enum"])):
                fields["type"] = "string"
            if isinstance(text := fields.get("description"), str):
                fields["description"] = cleandoc(text)
            return fields
        case [*values]:
            return [_stated(value) for value in values]
        case _:
            return node


def _named(properties: dict[str, Schema]) -> Schema:
    for field in properties.values():
        field.pop("default", None)
    return {name: field for name, field in properties.items() if field.get("type") != "null"}
