"""What may be done with stored responses: GET, DELETE, and their input items. A key sees only its own."""

from functools import partial
from typing import Final

import msgspec
from quart import request
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.response_answers import InputTokenCount, ResponseDeleted, ResponseItemList
from ..asgi import Application, current_exchange
from ..auth import Keys
from ..generation.generation import origin_of
from ..generation.models import reading
from ..responses.background import BackgroundResponses
from ..responses.responses import Responses, read_response
from ..responses.store import ResponseStore
from .paging import Query
from .response_socket import open_socket

PATH: Final = "/v1/responses"
PAGE: Final = 20  # OpenAI's default
MAX_PAGE: Final = 100
_INCLUDE: Final = ("include", "include[]")  # what may be included is there already, or does not exist here


class _HasId(msgspec.Struct):
    id: str


def register(app: Application, keys: Keys) -> None:
    store = ResponseStore(app.engine.settings)
    background = BackgroundResponses(app, store)
    responses = Responses(app.engine, app.openings, store, background)
    app.generation_route(PATH)(responses.create)
    app.socket_route(PATH, partial(open_socket, app.engine, responses, keys))
    app.after_serving(background.finish)

    @app.post(f"{PATH}/input_tokens")
    async def count_input_tokens() -> Response:
        exchange = current_exchange()
        asks = origin_of(app.engine, exchange)
        async with reading(app.engine, exchange.read_json, read_response, asks) as (engine, served, read):
            (prompt,) = (await responses.prepare(engine, read, served, asks)).request.prompts
            count = InputTokenCount(input_tokens=len(await engine.tokenize(prompt)))
        return _json(msgspec.json.encode(count))

    @app.get(f"{PATH}/<id>")
    async def get_response(id: str) -> Response:
        Query((*_INCLUDE, "stream", "starting_after", "include_obfuscation"))
        if request.args.get("stream", "false") != "false" or "starting_after" in request.args:
            message = "A response that was stored is not streamed again; leave stream out."
            raise ApiError("unsupported_parameter", message, param="stream")
        return _json(await store.get(id, current_exchange().tenant))

    @app.delete(f"{PATH}/<id>")
    async def delete_response(id: str) -> Response:
        await store.delete(id, current_exchange().tenant)
        return _json(msgspec.json.encode(ResponseDeleted(id=id)))

    @app.post(f"{PATH}/<id>/cancel")
    async def cancel_response(id: str) -> Response:
        return _json(await background.cancel(id, current_exchange().tenant))

    @app.get(f"{PATH}/<id>/input_items")
    async def list_input_items(id: str) -> Response:
        query = Query((*_INCLUDE, "limit", "order", "after"))
        items = await store.input_items(id, current_exchange().tenant)
        return _json(msgspec.json.encode(_page(items, query)))


def _page(items: list[msgspec.Raw], query: Query) -> ResponseItemList:
    """Raises ApiError (400)."""
    limit, order, after = query.limit(PAGE, MAX_PAGE), query.word("order", ("asc", "desc")), query.text("after")
    ids = [msgspec.json.decode(item, type=_HasId).id for item in items]
    if order != "asc":
        items, ids = items[::-1], ids[::-1]
    if after is not None and after not in ids:
        raise ApiError("invalid_value", f"after: there is no item {after[:64]!r} in this list.", param="after")
    first = 0 if after is None else ids.index(after) + 1
    end = first + limit
    shown = ids[first:end]
    return ResponseItemList(
        data=items[first:end],
        first_id=shown[0] if shown else None,
        last_id=shown[-1] if shown else None,
        has_more=end < len(items),
    )


_json = partial(Response, content_type="application/json")
