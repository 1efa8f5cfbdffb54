"""The bodies of requests for vectors and scores: embeddings, classes, and scores of pairs of texts.

Embeddings have OpenAI's form; the others that of vLLM, whose rerank form is Jina's and Cohere's. As in
openai_requests.py, unknown fields are refused and a null means "not given".
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct

from .openai_messages import Hint
from .openai_requests import MAX_INT32

MAX_TEXTS = 2048  # of one request, as OpenAI has it
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Texts = Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Length = Annotated[int, Meta(ge=-1, le=MAX_INT32)]


class PooledBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What all of them have. `truncate_prompt_tokens` cuts longer texts at their end; -1: to what the model takes."""

    model: str | None = None
    truncate_prompt_tokens: Length | None = None
    user: Hint = UNSET
    priority: Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32)] | None = None


class EmbeddingBody(PooledBody, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/embeddings`. `prompt_name` names a prompt of the model's files that comes before each text."""

    input: str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    prompt_name: str | None = None
    add_special_tokens: bool | None = None


class ClassifyBody(PooledBody, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/classify`."""

    input: str | Texts


class ScoreBody(PooledBody, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/score`: each text of one list with the same place of the other, or one with all."""

    text_1: str | Texts
    text_2: str | Texts


class RerankDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A document may be an object with its text."""

    text: str


class RerankBody(PooledBody, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/rerank`: the documents that fit the query best, best first."""

    query: str
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None  # 0 or none: all
    return_documents: bool | None = None
