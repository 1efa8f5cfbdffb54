"""POST /v1/embeddings, /v1/classify, /v1/score and /v1/rerank (also /rerank and /v2/rerank, as vLLM has it)."""

from functools import partial

import msgspec

from ...protocol.pooling_requests import ClassifyBody, EmbeddingBody, RerankBody, ScoreBody
from ...protocol.steps import PoolingModel
from ..asgi import Application
from ..generation.asked import Asked, Origin, Read, ServedModel
from ..generation.generation import respond
from ..openai.decode import decode
from ..pooling.answer import Classes, Embeddings, Ranks, Scores
from ..pooling.request import classify_request, embedding_request, rerank_request, score_request

_EMBEDDING = msgspec.json.Decoder(EmbeddingBody)
_CLASSIFY = msgspec.json.Decoder(ClassifyBody)
_SCORE = msgspec.json.Decoder(ScoreBody)
_RERANK = msgspec.json.Decoder(RerankBody)


def register(app: Application) -> None:
    for path, read in READERS.items():
        app.generation_route(path)(partial(respond, app.engine, app.openings, read))


def read_embedding(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    body = decode(data, _EMBEDDING)
    request = embedding_request(body, served, origin)
    return Asked(request, Embeddings(request, _of(served), body))


def read_classify(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    request = classify_request(decode(data, _CLASSIFY), served, origin)
    return Asked(request, Classes(request, _of(served)))


def read_score(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    request = score_request(decode(data, _SCORE), served, origin)
    return Asked(request, Scores(request, _of(served)))


def read_rerank(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    body = decode(data, _RERANK)
    request = rerank_request(body, served, origin)
    return Asked(request, Ranks(request, _of(served), body))


def _of(served: ServedModel) -> PoolingModel:
    model = served.ready.pooling
    assert model is not None, "the request was checked"
    return model


READERS: dict[str, Read] = {
    "/v1/embeddings": read_embedding,
    "/v1/classify": read_classify,
    "/v1/score": read_score,
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), read_rerank),
}
