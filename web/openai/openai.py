"""Reads the body of a chat or of a completion: what the engine is asked for, and how the answer is written."""

import time

from ...protocol.requests import Generate
from ..generation.asked import Asked, Origin, ServedModel
from ..generation.disconnect import waiting_seconds
from .answer import WholeAnswer
from .chunks import Chunks
from .decode import decode
from .dialect import Body, Dialect, Reply
from .request import asks_logprobs


def read(dialect: Dialect[Body], served: ServedModel, origin: Origin, data: bytes) -> Asked:
    """Raises ApiError (400, 404)."""
    body = decode(data, dialect.decoder)
    request = dialect.generate(body, served, origin)
    reply = _reply(dialect, body, request)
    waits = waiting_seconds(body.disconnect_policy, served.limits, stream=body.stream)
    if body.stream:
        return Asked(request, Chunks(reply), waits)
    return Asked(request, WholeAnswer(reply, logprobs=asks_logprobs(body)))


def _reply(dialect: Dialect[Body], body: Body, request: Generate) -> Reply:
    options = body.stream_options
    return Reply(
        dialect=dialect,
        id=dialect.id_prefix + request.id,
        created=int(time.time()),
        model=request.served_as,
        choices=len(request.prompts) * request.n,
        best=body.n or 1,
        of=request.n,
        beams=request.beams is not None,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        token_ids=request.returns_token_ids,
        prompt_logprobs=request.prompt_logprobs is not None,
    )
