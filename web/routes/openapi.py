"""GET /openapi.json: OpenAPI 3.1, generated from the Structs that validate requests and build responses."""

from functools import cache
from importlib.metadata import version

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.adapters import LoadAdapterBody, UnloadAdapterBody
from ...protocol.anthropic_requests import CountTokensBody, MessagesBody
from ...protocol.anthropic_responses import AnthropicError, AnthropicMessage, TokenCount
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
from .openapi_operations import RESPONSE_SOCKET, STREAM, UPLOAD, chunks, get, lines, named_events, post
from .openapi_schemas import Schema, schemas


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
        "/v1/chat/completions": post(
            "create_chat_completion", "Answer a conversation.", ChatBody, ChatCompletion, stream=chunks(ChatChunk)
        ),
        "/v1/completions": post(
            "create_completion", "Continue a text.", CompletionBody, Completion, stream=chunks(CompletionChunk)
        ),
        "/v1/messages": post(
            "create_message",
            "Answer a conversation, in Anthropic's form.",
            MessagesBody,
            AnthropicMessage,
            stream=named_events("MessageEvent"),
            error=AnthropicError,
        ),
        "/v1/messages/count_tokens": post(
            "count_message_tokens",
            "The tokens of a prompt, in Anthropic's form.",
            CountTokensBody,
            TokenCount,
            error=AnthropicError,
        ),
        "/v1/responses": {
            **post(
                "create_response",
                "Answer a conversation (OpenAI's Responses API).",
                CreateResponse,
                ResponseObject,
                stream=named_events("ResponseStreamEvent"),
            ),
            **RESPONSE_SOCKET,
        },
        "/v1/responses/input_tokens": post(
            "count_input_tokens", "The length of a response's prompt.", CreateResponse, InputTokenCount
        ),
        "/v1/responses/{response_id}": {
            **get("get_response", "A stored response.", ResponseObject, path_parameter="response_id"),
            **get(
                "delete_response",
                "Delete a stored response.",
                ResponseDeleted,
                path_parameter="response_id",
                method="delete",
            ),
        },
        "/v1/responses/{response_id}/cancel": get(
            "cancel_response",
            "End a response that is made in the background.",
            ResponseObject,
            path_parameter="response_id",
            method="post",
        ),
        "/v1/responses/{response_id}/input_items": get(
            "list_input_items",
            "The items of a stored response's input.",
            ResponseItemList,
            path_parameter="response_id",
            query=("limit", "order", "after"),
        ),
        "/api/chat": post(
            "create_ollama_chat",
            "Answer a conversation, in Ollama's form.",
            OllamaChatBody,
            OllamaChatAnswer,
            stream=lines(OllamaChatAnswer),
            error=OllamaError,
        ),
        "/api/generate": post(
            "create_ollama_generation",
            "Answer or continue a text, in Ollama's form.",
            OllamaGenerateBody,
            OllamaGenerateAnswer,
            stream=lines(OllamaGenerateAnswer),
            error=OllamaError,
        ),
        "/api/embed": post(
            "create_ollama_embeddings",
            "Vectors of texts, in Ollama's form.",
            OllamaEmbedBody,
            OllamaEmbeddings,
            error=OllamaError,
        ),
        "/api/show": post(
            "show_ollama_model", "The model, in Ollama's form.", OllamaShowBody, OllamaModelPage, error=OllamaError
        ),
        "/api/tags": get("list_ollama_models", "The models, in Ollama's form.", OllamaModels, error=OllamaError),
        "/api/ps": get(
            "list_ollama_running", "The loaded models, in Ollama's form.", OllamaRunningModels, error=OllamaError
        ),
        "/api/version": get("get_ollama_version", "The version, in Ollama's form.", OllamaVersion, error=OllamaError),
        "/v1/stream": STREAM,
        "/v1/files": {
            **UPLOAD,
            **get("list_files", "Your files.", FileList, query=("limit", "order", "after", "purpose")),
        },
        "/v1/files/{file_id}": {
            **get("get_file", "One file.", FileObject, path_parameter="file_id"),
            **get("delete_file", "Delete a file.", FileDeleted, path_parameter="file_id", method="delete"),
        },
        "/v1/files/{file_id}/content": get(
            "get_file_content",
            "The bytes of a file.",
            None,
            path_parameter="file_id",
            media_type="application/octet-stream",
        ),
        "/v1/batches": {
            **post("create_batch", "Run the requests in a file when nothing else does.", CreateBatch, BatchObject),
            **get("list_batches", "Your batches, the newest first.", BatchList, query=("limit", "after")),
        },
        "/v1/batches/{batch_id}": get("get_batch", "One batch.", BatchObject, path_parameter="batch_id"),
        "/v1/batches/{batch_id}/cancel": get(
            "cancel_batch", "End a batch early.", BatchObject, path_parameter="batch_id", method="post"
        ),
        "/v1/models": get("list_models", "The models that are served.", ModelList),
        "/v1/models/{model}": get("get_model", "One model.", ModelCard, path_parameter="model"),
        "/v1/load_lora_adapter": post(
            "load_adapter",
            "Offer a LoRA adapter from --lora-folder.",
            LoadAdapterBody,
            None,
            media_type="text/plain",
        ),
        "/v1/unload_lora_adapter": post(
            "unload_adapter", "Offer it no longer.", UnloadAdapterBody, None, media_type="text/plain"
        ),
        "/models": get("list_model_states", "The state of each of several models.", ServedModelList),
        "/models/load": post("load_model", "Load one of several models.", ModelBody, ModelDone),
        "/models/unload": post("unload_model", "Unload it when its requests have ended.", ModelBody, ModelDone),
        "/models/alias": post("alias_model", "Give it another name, or take that away.", AliasBody, ModelDone),
        "/v1/requests/{id}": get(
            "explain_request",
            "Why a request is where it is. `id` is the server's, the answer's (`chatcmpl-…`) or an X-Request-Id.",
            Explanation,
            path_parameter="id",
        ),
        "/v1/requests/{id}/events": {
            **get(
                "resume_stream",
                "Go on with a stream that has a `disconnect_policy`, behind the event in `Last-Event-ID` or `after`.",
                None,
                path_parameter="id",
                query=("after",),
                media_type="text/event-stream",
            ),
            **get("stop_stream", "End such a stream.", None, path_parameter="id", method="delete"),
        },
        "/v1/usage": get(
            "get_usage",
            "What requests used: sums, or the records of single requests (`group_by=none`).",
            UsageList,
            query=("group_by", "start", "end", "limit", "after", "key_digest"),
        ),
        "/v1/embeddings": post("create_embedding", "The vectors of texts.", EmbeddingBody, EmbeddingList),
        "/v1/classify": post("classify", "The most probable label of each text.", ClassifyBody, ClassList),
        "/v1/score": post("score", "How well the texts of pairs fit.", ScoreBody, ScoreList),
        "/v1/rerank": post("rerank", "The documents that fit a query best, best first.", RerankBody, Ranking),
        "/rerank": post("rerank_root", "The same as /v1/rerank.", RerankBody, Ranking),
        "/v2/rerank": post("rerank_v2", "The same as /v1/rerank.", RerankBody, Ranking),
        "/tokenize": post("tokenize", "The token ids of a text or a conversation.", TokenizeBody, Tokenization),
        "/detokenize": post("detokenize", "The text of token ids.", DetokenizeBody, Detokenization),
        "/tokenizer_info": get("get_tokenizer_info", "Special tokens and the chat template.", TokenizerInfo),
        "/health/live": get("get_liveness", "The process answers.", None, open_to_all=True),
        "/health/ready": get("get_readiness", "The engine makes progress.", None),
        "/health": get("get_health", "The same as /health/ready.", None),
        "/version": get("get_version", "Versions of the server and its parts.", None),
        "/internal/doctor": get("get_doctor_report", "What `triolet doctor` prints, for operators.", None),
        "/metrics": get("get_metrics", "Metrics in the Prometheus text format.", None, media_type="text/plain"),
    }


@cache  # of a process with several servers, which has tests: making it takes longer than all else of an application
def document_at(root_path: str) -> bytes:
    return msgspec.json.encode(describe(root_path=root_path))


def register(app: Application) -> None:
    document = document_at(app.engine.settings.root_path)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(document, content_type="application/json")
