"""GET /openapi.json: OpenAPI 3.1, generated from the Structs that validate requests and build responses."""

from functools import cache
from importlib.metadata import version

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.adapters import LoadAdapterBody, UnloadAdapterBody
from ...protocol.anthropic_requests import CountTokensBody, MessagesBody
from ...protocol.anthropic_responses import AnthropicError, AnthropicMessage, TokenCount
from ...protocol.errors import REGISTRY, ErrorBody
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
from ...protocol.openai_batches import (
    FILE_SECONDS,
    BatchList,
    BatchObject,
    CreateBatch,
    FileDeleted,
    FileList,
    FileObject,
)
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
from ...protocol.response_answers import InputTokenCount, ResponseDeleted, ResponseItemList, ResponseObject
from ...protocol.response_requests import CreateResponse
from ...protocol.served_models import AliasBody, ModelBody, ModelDone, ServedModelList
from ...protocol.usage import UsageList
from ..asgi import Application
from ..exchange import EXPLAIN_HEADER
from .openapi_schemas import QUERY, Schema, reference, schemas


def describe(title: str = "Triolet", root_path: str = "") -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version("triolet"),
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{}, {"bearer": []}, {"header": []}],
        "paths": paths(),
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def paths() -> Schema:
    """The operations of each path."""
    return {
        "/v1/chat/completions": _post(
            "create_chat_completion", "Answer a conversation.", ChatBody, ChatCompletion, stream=_chunks(ChatChunk)
        ),
        "/v1/completions": _post(
            "create_completion", "Continue a text.", CompletionBody, Completion, stream=_chunks(CompletionChunk)
        ),
        "/v1/messages": _post(
            "create_message",
            "Answer a conversation, in Anthropic's form.",
            MessagesBody,
            AnthropicMessage,
            stream=_named_events("MessageEvent"),
            error=AnthropicError,
        ),
        "/v1/messages/count_tokens": _post(
            "count_message_tokens",
            "The tokens of a prompt, in Anthropic's form.",
            CountTokensBody,
            TokenCount,
            error=AnthropicError,
        ),
        "/v1/responses": {
            **_post(
                "create_response",
                "Answer a conversation (OpenAI's Responses API).",
                CreateResponse,
                ResponseObject,
                stream=_named_events("ResponseStreamEvent"),
            ),
            **_RESPONSE_SOCKET,
        },
        "/v1/responses/input_tokens": _post(
            "count_input_tokens", "The length of a response's prompt.", CreateResponse, InputTokenCount
        ),
        "/v1/responses/{response_id}": {
            **_get("get_response", "A stored response.", ResponseObject, path_parameter="response_id"),
            **_get(
                "delete_response",
                "Delete a stored response.",
                ResponseDeleted,
                path_parameter="response_id",
                method="delete",
            ),
        },
        "/v1/responses/{response_id}/cancel": _get(
            "cancel_response",
            "End a response that is made in the background.",
            ResponseObject,
            path_parameter="response_id",
            method="post",
        ),
        "/v1/responses/{response_id}/input_items": _get(
            "list_input_items",
            "The items of a stored response's input.",
            ResponseItemList,
            path_parameter="response_id",
            query=("limit", "order", "after"),
        ),
        "/api/chat": _post(
            "create_ollama_chat",
            "Answer a conversation, in Ollama's form.",
            OllamaChatBody,
            OllamaChatAnswer,
            stream=_lines(OllamaChatAnswer),
            error=OllamaError,
        ),
        "/api/generate": _post(
            "create_ollama_generation",
            "Answer or continue a text, in Ollama's form.",
            OllamaGenerateBody,
            OllamaGenerateAnswer,
            stream=_lines(OllamaGenerateAnswer),
            error=OllamaError,
        ),
        "/api/embed": _post(
            "create_ollama_embeddings",
            "Vectors of texts, in Ollama's form.",
            OllamaEmbedBody,
            OllamaEmbeddings,
            error=OllamaError,
        ),
        "/api/show": _post(
            "show_ollama_model", "The model, in Ollama's form.", OllamaShowBody, OllamaModelPage, error=OllamaError
        ),
        "/api/tags": _get("list_ollama_models", "The models, in Ollama's form.", OllamaModels, error=OllamaError),
        "/api/ps": _get(
            "list_ollama_running", "The loaded models, in Ollama's form.", OllamaRunningModels, error=OllamaError
        ),
        "/api/version": _get("get_ollama_version", "The version, in Ollama's form.", OllamaVersion, error=OllamaError),
        "/v1/stream": _STREAM,
        "/v1/files": {
            **_UPLOAD,
            **_get("list_files", "Your files.", FileList, query=("limit", "order", "after", "purpose")),
        },
        "/v1/files/{file_id}": {
            **_get("get_file", "One file.", FileObject, path_parameter="file_id"),
            **_get("delete_file", "Delete a file.", FileDeleted, path_parameter="file_id", method="delete"),
        },
        "/v1/files/{file_id}/content": _get(
            "get_file_content",
            "The bytes of a file.",
            None,
            path_parameter="file_id",
            media_type="application/octet-stream",
        ),
        "/v1/batches": {
            **_post("create_batch", "Run the requests in a file when nothing else does.", CreateBatch, BatchObject),
            **_get("list_batches", "Your batches, the newest first.", BatchList, query=("limit", "after")),
        },
        "/v1/batches/{batch_id}": _get("get_batch", "One batch.", BatchObject, path_parameter="batch_id"),
        "/v1/batches/{batch_id}/cancel": _get(
            "cancel_batch", "End a batch early.", BatchObject, path_parameter="batch_id", method="post"
        ),
        "/v1/models": _get("list_models", "The models that are served.", ModelList),
        "/v1/models/{model}": _get("get_model", "One model.", ModelCard, path_parameter="model"),
        "/v1/load_lora_adapter": _post(
            "load_adapter",
            "Offer a LoRA adapter from --lora-folder.",
            LoadAdapterBody,
            None,
            media_type="text/plain",
        ),
        "/v1/unload_lora_adapter": _post(
            "unload_adapter", "Offer it no longer.", UnloadAdapterBody, None, media_type="text/plain"
        ),
        "/models": _get("list_model_states", "The state of each of several models.", ServedModelList),
        "/models/load": _post("load_model", "Load one of several models.", ModelBody, ModelDone),
        "/models/unload": _post("unload_model", "Unload it when its requests have ended.", ModelBody, ModelDone),
        "/models/alias": _post("alias_model", "Give it another name, or take that away.", AliasBody, ModelDone),
        "/v1/requests/{id}": _get(
            "explain_request",
            "Why a request is where it is. `id` is the server's, the answer's (`chatcmpl-…`) or an X-Request-Id.",
            Explanation,
            path_parameter="id",
        ),
        "/v1/usage": _get(
            "get_usage",
            "What requests used: sums, or the records of single requests (`group_by=none`).",
            UsageList,
            query=("group_by", "start", "end", "limit", "after", "key_digest"),
        ),
        "/v1/embeddings": _post("create_embedding", "The vectors of texts.", EmbeddingBody, EmbeddingList),
        "/v1/classify": _post("classify", "The most probable label of each text.", ClassifyBody, ClassList),
        "/v1/score": _post("score", "How well the texts of pairs fit.", ScoreBody, ScoreList),
        "/v1/rerank": _post("rerank", "The documents that fit a query best, best first.", RerankBody, Ranking),
        "/rerank": _post("rerank_root", "The same as /v1/rerank.", RerankBody, Ranking),
        "/v2/rerank": _post("rerank_v2", "The same as /v1/rerank.", RerankBody, Ranking),
        "/tokenize": _post("tokenize", "The token ids of a text or a conversation.", TokenizeBody, Tokenization),
        "/detokenize": _post("detokenize", "The text of token ids.", DetokenizeBody, Detokenization),
        "/tokenizer_info": _get("get_tokenizer_info", "Special tokens and the chat template.", TokenizerInfo),
        "/health/live": _get("get_liveness", "The process answers.", None, open_to_all=True),
        "/health/ready": _get("get_readiness", "The engine makes progress.", None),
        "/health": _get("get_health", "The same as /health/ready.", None),
        "/version": _get("get_version", "Versions of the server and its parts.", None),
        "/internal/doctor": _get("get_doctor_report", "What `triolet doctor` prints, for operators.", None),
        "/metrics": _get("get_metrics", "Metrics in the Prometheus text format.", None, media_type="text/plain"),
    }


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


def _get(
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


def _post(
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


def _chunks(chunk: type[msgspec.Struct]) -> Schema:
    done: Schema = {"type": "string", "const": "[DONE]"}
    return _events(
        {"data": {"anyOf": [done, _in_text(chunk, ErrorBody)]}},
        f"Events `data: {chunk.__name__}`, the last `data: [DONE]`. If the answer fails after its start, the last is "
        "`data: ErrorBody`.",
    )


def _named_events(schema: str) -> Schema:
    """`schema`: of the events' data."""
    names: Schema = {"type": "string", "description": "The `type` of the data."}
    content = {"type": "string", "contentMediaType": "application/json", "contentSchema": reference(schema)}
    return _events({"event": names, "data": content}, "Events with a name. The last says how the answer ended.")


def _lines(answer: type[msgspec.Struct]) -> Schema:
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


_UPLOAD: Schema = {
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

_RESPONSE_SOCKET: Schema = {
    "get": _operation(
        "open_response_socket",
        "One response after another over a WebSocket.",
        {"101": {"description": "A WebSocket. The client sends CreateResponse with `type: response.create`."}},
        description="OpenAPI has no WebSockets. The schemas `CreateResponse` and `ResponseStreamEvent` describe its "
        "messages.",
    )
}
_STREAM: Schema = {
    "get": _operation(
        "open_stream",
        "Many requests over one WebSocket.",
        {"101": {"description": "A WebSocket. Its text messages are ClientFrame one way and ServerFrame the other."}},
        description="OpenAPI has no WebSockets: open it with a WebSocket client. The schemas `ClientFrame` and "
        "`ServerFrame` describe its messages.",
    )
}


@cache  # of a process with several servers, which has tests: making it takes longer than all else of an application
def document_at(root_path: str) -> bytes:
    return msgspec.json.encode(describe(root_path=root_path))


def register(app: Application) -> None:
    document = document_at(app.engine.settings.root_path)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(document, content_type="application/json")
