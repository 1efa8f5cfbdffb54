"""GET /v1/requests/{id}: a request's state and the reason for it, while the server remembers it."""

from typing import TYPE_CHECKING, Final

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.explanation import Explanation
from ...protocol.response_answers import RESPONSE_PREFIX
from ..anthropic.message import ID_PREFIX
from ..asgi import Application, current_exchange
from ..openai.dialect import CHAT, COMPLETIONS

if TYPE_CHECKING:
    from ...actors.observe.server import Server

# Of the server's own request id, or of an answer's id.
_PREFIXES: Final = ("", CHAT.id_prefix, COMPLETIONS.id_prefix, RESPONSE_PREFIX, ID_PREFIX)


async def explanation(engine: "Server", id: str, tenant: str) -> Explanation:
    """Find this tenant's request by its id, its answer's id or its X-Request-Id; raises ApiError (404)."""
    for prefix in _PREFIXES:
        found = await engine.explain(id.removeprefix(prefix), tenant) if id.startswith(prefix) else None
        if found is not None:
            return found
    raise ApiError("not_found", "There is no such request: its id is wrong, or it ended long ago.", param="id")


def register(app: Application) -> None:
    engine = app.engine

    @app.get("/v1/requests/<id>")
    async def explain_request(id: str) -> Response:
        found = await explanation(engine, id, current_exchange().tenant)
        return Response(msgspec.json.encode(found), content_type="application/json")
