"""The answers to requests for vectors and scores; see pooling_requests.py."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class PooledUsage(Struct, kw_only=True):
    """No token is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(Struct, kw_only=True):
    """base64 is of the values as little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: PooledUsage


class ClassItem(Struct, kw_only=True):
    """`label` is the most probable one; the probabilities are in the order of the model's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassItem]
    usage: PooledUsage


class ScoreItem(Struct, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreItem]
    usage: PooledUsage


class RankedDocument(Struct, kw_only=True):
    text: str


class RankedItem(Struct, kw_only=True):
    """`index` is the document's place in the request."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(Struct, kw_only=True):
    id: str
    model: str
    results: list[RankedItem]
    usage: PooledUsage
