"""Puts the vectors of a request together to its answer: embeddings, classes, scores or a ranking."""

import base64
import sys
import time
from abc import abstractmethod
from array import array
from collections.abc import Iterable
from math import exp, hypot

import msgspec

from ...protocol.events import Finished, StreamEvent, Vector
from ...protocol.pooling_requests import EmbeddingBody, RerankBody
from ...protocol.pooling_responses import (
    ClassItem,
    ClassList,
    EmbeddingItem,
    EmbeddingList,
    PooledUsage,
    RankedDocument,
    RankedItem,
    Ranking,
    ScoreItem,
    ScoreList,
)
from ...protocol.requests import Generate
from ...protocol.steps import PoolingModel
from ..generation.asked import Whole
from .request import document_texts


class VectorAnswer(Whole):
    """One vector per prompt; its size is bounded by their number."""

    __slots__ = ("_model", "_request", "_vectors")

    def __init__(self, request: Generate, model: PoolingModel) -> None:
        self._request, self._model = request, model
        self._vectors = [b""] * len(request.prompts)

    def extend(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, Vector):
                self._vectors[event.index] = event.values

    @abstractmethod
    def body(self, finished: Finished) -> msgspec.Struct: ...

    def _numbers(self) -> list[list[float]]:
        return [_floats(vector).tolist() for vector in self._vectors]

    @staticmethod
    def _usage(finished: Finished) -> PooledUsage:
        tokens = finished.usage.prompt_tokens
        return PooledUsage(prompt_tokens=tokens, total_tokens=tokens)


def shortened(vector: bytes, size: int, model: PoolingModel) -> "array[float]":
    """The first values of a vector; it gets its length back, where the model's have length 1."""
    values = _floats(vector)
    if size >= len(values):
        return values
    values = values[:size]
    length = hypot(*values) if model.normalised else 1.0
    return array("f", [value / (length or 1.0) for value in values])


class Embeddings(VectorAnswer):
    __slots__ = ("_base64", "_size")

    def __init__(self, request: Generate, model: PoolingModel, body: EmbeddingBody) -> None:
        super().__init__(request, model)
        self._base64 = body.encoding_format == "base64"
        self._size = body.dimensions or model.size

    def body(self, finished: Finished) -> EmbeddingList:
        items = [EmbeddingItem(index=index, embedding=self._item(v)) for index, v in enumerate(self._vectors)]
        return EmbeddingList(data=items, model=self._request.served_as, usage=self._usage(finished))

    def _item(self, vector: bytes) -> list[float] | str:
        values = shortened(vector, self._size, self._model)
        return base64.b64encode(_little(values)).decode() if self._base64 else values.tolist()


class Classes(VectorAnswer):
    __slots__ = ()

    def body(self, finished: Finished) -> ClassList:
        labels = self._model.labels
        items: list[ClassItem] = []
        for index, logits in enumerate(self._numbers()):
            shares = [sigmoid(x) for x in logits] if self._model.several_labels or len(labels) == 1 else softmax(logits)
            label = labels[shares.index(max(shares))]
            items.append(ClassItem(index=index, label=label, probs=shares, num_classes=len(labels)))
        return ClassList(
            id=f"classify-{self._request.id}",
            created=int(time.time()),
            model=self._request.served_as,
            data=items,
            usage=self._usage(finished),
        )


class _PairScores(VectorAnswer):
    __slots__ = ()

    def _scores(self) -> list[float]:
        return [row[0] if self._model.raw_scores else sigmoid(row[0]) for row in self._numbers()]


class Scores(_PairScores):
    __slots__ = ()

    def body(self, finished: Finished) -> ScoreList:
        return ScoreList(
            id=f"score-{self._request.id}",
            created=int(time.time()),
            model=self._request.served_as,
            data=[ScoreItem(index=index, score=score) for index, score in enumerate(self._scores())],
            usage=self._usage(finished),
        )


class Ranks(_PairScores):
    __slots__ = ("_documents", "_shows", "_top")

    def __init__(self, request: Generate, model: PoolingModel, body: RerankBody) -> None:
        super().__init__(request, model)
        self._documents = document_texts(body)
        self._shows = body.return_documents is not False
        self._top = body.top_n or len(self._documents)

    def body(self, finished: Finished) -> Ranking:
        ranked = sorted(enumerate(self._scores()), key=lambda item: (-item[1], item[0]))[: self._top]
        items = [RankedItem(index=index, relevance_score=score) for index, score in ranked]
        if self._shows:
            for item in items:
                item.document = RankedDocument(text=self._documents[item.index])
        return Ranking(
            id=f"rerank-{self._request.id}",
            model=self._request.served_as,
            results=items,
            usage=self._usage(finished),
        )


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x)) if x >= 0 else 1 - 1 / (1 + exp(x))


def softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    powers = [exp(x - largest) for x in logits]
    total = sum(powers)
    return [power / total for power in powers]


def _floats(vector: bytes) -> "array[float]":
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _little(values: "array[float]") -> bytes:
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return values.tobytes()
