"""A line of a batch: read, validated and answered by the same code as the body of a request, without HTTP."""

from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec import structs

from ...protocol.errors import ApiError
from ..large_json import decode_aside
from .asked import Asked, Origin, Read, Whole
from .generation import whole
from .models import served_model

if TYPE_CHECKING:
    from ...actors.front_actors import FrontActors


async def answer_line(
    engine: "FrontActors", read: Read, body: bytes, tenant: str, name: str, called: str | None = None
) -> bytes:
    """The answer's body. Raises ApiError: 400 and 404 for the line, and what the engine fails with.

    `called` is an alias of the engine's model, if the line names that.
    """
    served = served_model(engine, called)
    asks = Origin(engine.gateway.new_id(), tenant, trio.current_time(), name=name)
    asked: Asked = await decode_aside(body, partial(read, served, asks), tenant)
    if not isinstance(asked.answer, Whole):
        raise ApiError("invalid_value", "stream: a line of a batch cannot be streamed; leave it out.", param="stream")
    outbox = engine.gateway.submit(structs.replace(asked.request, background=True))
    try:
        return await whole(outbox, asked.answer)
    finally:
        engine.gateway.cancel(asked.request.id)
