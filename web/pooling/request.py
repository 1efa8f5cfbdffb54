"""Turns the bodies of requests for vectors and scores into the engine's request, or raises an ApiError that names the
field."""

from collections.abc import Sequence

from ...protocol.errors import ApiError
from ...protocol.pooling_requests import (
    MAX_TEXTS,
    ClassifyBody,
    EmbeddingBody,
    PooledBody,
    RerankBody,
    RerankDocument,
    ScoreBody,
)
from ...protocol.requests import Generate, Prompt, TextPrompt, TokenPrompt
from ...protocol.sampling import Sampling
from ...protocol.steps import PoolingModel
from ..generation.asked import Origin, ServedModel
from ..openai.request import check_token_ids, named_adapter


def embedding_request(body: EmbeddingBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    model = _model(served, "embed")
    if body.dimensions is not None:
        _check_dimensions(body.dimensions, model)
    return _request(body, served, origin, _inputs(body, served, _prefix(body, model)))


def classify_request(body: ClassifyBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    _model(served, "classify")
    return _request(body, served, origin, [TextPrompt(text=text) for text in _listed(body.input)])


def score_request(body: ScoreBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    _pair_model(served)
    left, right = _listed(body.text_1), _listed(body.text_2)
    if len(left) == 1:
        left = left * len(right)
    if len(left) != len(right):
        message = f"text_1 has {len(left)} texts and text_2 {len(right)}: send as many, or one in text_1."
        raise ApiError("invalid_value", message, param="text_2")
    return _request(body, served, origin, _pairs(left, right))


def rerank_request(body: RerankBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    _pair_model(served)
    texts = document_texts(body)
    return _request(body, served, origin, _pairs([body.query] * len(texts), texts))


def document_texts(body: RerankBody) -> list[str]:
    return [document.text if isinstance(document, RerankDocument) else document for document in body.documents]


def _request(body: PooledBody, served: ServedModel, origin: Origin, prompts: Sequence[Prompt]) -> Generate:
    named_adapter(body.model, served, origin.fallbacks)
    length = body.truncate_prompt_tokens
    return Generate(
        id=origin.id,
        name=origin.name,
        traceparent=origin.traceparent,
        model=served.model,
        prompts=tuple(prompts),
        pooled=True,
        sampling=Sampling(temperature=0.0),
        max_tokens=1,
        truncate_prompt_tokens=served.ready.context_length if length == -1 else length,
        truncation_side="right",
        priority=body.priority or 0,
        tenant=origin.tenant,
        arrival_time=origin.arrival_time,
        deadline=origin.deadline,
    )


def _model(served: ServedModel, task: str) -> PoolingModel:
    model = served.ready.pooling
    if model is None:
        message = "This model generates text: use /v1/chat/completions or /v1/completions. It makes no vectors."
        raise ApiError("invalid_value", message, param="model")
    if model.task != task:
        raise ApiError("invalid_value", f"This model {model.does}.", param="model")
    return model


def _pair_model(served: ServedModel) -> None:
    model = _model(served, "classify")
    if len(model.labels) != 1:
        message = f"A score needs a model with one label, such as a reranker; this one has {len(model.labels)}. Use "
        raise ApiError("invalid_value", message + "/v1/classify.", param="model")


def _check_dimensions(dimensions: int, model: PoolingModel) -> None:
    if dimensions > model.size:
        raise ApiError("invalid_value", f"dimensions: this model's vectors have {model.size}.", param="dimensions")
    if model.dimensions and dimensions not in (*model.dimensions, model.size):
        sizes = ", ".join(map(str, (*model.dimensions, model.size)))
        raise ApiError("invalid_value", f"dimensions: this model was trained for {sizes}.", param="dimensions")


def _prefix(body: EmbeddingBody, model: PoolingModel) -> str:
    name = model.default_prompt if body.prompt_name is None else body.prompt_name
    if name is None:
        return ""
    if name not in model.prompts:
        known = ", ".join(map(repr, model.prompts)) or "none"
        raise ApiError("invalid_value", f"prompt_name: the model's files name {known}.", param="prompt_name")
    return model.prompts[name]


def _inputs(body: EmbeddingBody, served: ServedModel, prefix: str) -> list[Prompt]:
    special = body.add_special_tokens is not False

    def text(value: str) -> TextPrompt:
        return TextPrompt(text=prefix + value, add_special_tokens=special)

    if isinstance(body.input, str):
        return [text(body.input)]
    items = body.input
    if isinstance(items[0], int):
        return [TokenPrompt(token_ids=_token_ids(items, served, "input"))]
    if len(items) > MAX_TEXTS:
        raise ApiError("invalid_value", f"input: at most {MAX_TEXTS} texts; these are {len(items)}.", param="input")
    prompts: list[Prompt] = []
    for place, item in enumerate(items):
        match item:
            case str() if isinstance(items[0], str):
                prompts.append(text(item))
            case list() if isinstance(items[0], list):
                prompts.append(TokenPrompt(token_ids=_token_ids(item, served, f"input[{place}]")))
            case _:
                message = "input: send texts, or token ids, or lists of token ids, and not several of these."
                raise ApiError("invalid_type", message, param=f"input[{place}]")
    return prompts


def _token_ids(items: Sequence[object], served: ServedModel, param: str) -> tuple[int, ...]:
    ids = tuple(item for item in items if isinstance(item, int))
    if len(ids) != len(items):
        message = "input: send texts, or token ids, or lists of token ids, and not several of these."
        raise ApiError("invalid_type", message, param=param)
    check_token_ids(list(ids), served.ready.vocab_size, param)
    return ids


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _pairs(left: Sequence[str], right: Sequence[str]) -> list[Prompt]:
    return [TextPrompt(text=one, second=other) for one, other in zip(left, right, strict=True)]
