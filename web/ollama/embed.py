"""Reads a request for embeddings in Ollama's form, and writes its answer. The vectors are those of /v1/embeddings."""

from typing import Final

import msgspec

from ...protocol.events import Finished
from ...protocol.ollama_requests import OllamaEmbedBody
from ...protocol.ollama_responses import OllamaEmbeddings, nanoseconds
from ...protocol.pooling_requests import EmbeddingBody
from ...protocol.requests import Generate
from ...protocol.steps import PoolingModel
from ..generation.asked import Asked, Origin, ServedModel
from ..openai.decode import decode
from ..pooling.answer import VectorAnswer, shortened
from ..pooling.request import embedding_request
from .request import plain_name, served_name

_EMBED: Final = msgspec.json.Decoder(OllamaEmbedBody)


class OllamaVectors(VectorAnswer):
    __slots__ = ("_name", "_size")

    def __init__(self, request: Generate, model: PoolingModel, name: str, size: int) -> None:
        super().__init__(request, model)
        self._name, self._size = name, size

    def body(self, finished: Finished) -> OllamaEmbeddings:
        return OllamaEmbeddings(
            model=self._name,
            embeddings=[shortened(vector, self._size, self._model).tolist() for vector in self._vectors],
            total_duration=nanoseconds(finished.timing.total or 0.0),
            prompt_eval_count=finished.usage.prompt_tokens,
        )


def read_embed(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    """Raises ApiError (400, 404)."""
    body = decode(data, _EMBED)
    name = served_name(body.model, served, origin.fallbacks)
    asked = EmbeddingBody(
        model=plain_name(body.model, served),
        input=body.input if isinstance(body.input, str) else [*body.input],
        dimensions=body.dimensions,
        truncate_prompt_tokens=None if body.truncate is False else -1,
    )
    request = embedding_request(asked, served, origin)
    model = served.ready.pooling
    assert model is not None, "the request was checked"
    return Asked(request, OllamaVectors(request, model, name, body.dimensions or model.size))
