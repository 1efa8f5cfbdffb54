"""What a model is there for: one that generates text makes no embeddings, and an encoder generates none. Pure."""

from ...protocol.errors import ApiError
from ...protocol.requests import Generate
from ...protocol.steps import PoolingModel


def check_task(request: Generate, pooling: PoolingModel | None) -> None:
    """Raises ApiError (400) if the model does not do what the request asks for."""
    if pooling is not None and not request.pooled:
        raise ApiError("invalid_value", f"This model generates no text, it {pooling.does}.", param="model")
    if pooling is None and request.pooled:
        message = "This model generates text: use /v1/chat/completions or /v1/completions. It makes no embeddings."
        raise ApiError("invalid_value", message, param="model")
