"""GET /v1/requests/{id}/events: a stream of server-sent events goes on where its client lost it. DELETE stops it.

`id` is the token in the ids of its events. The last one that the client has comes in `Last-Event-ID`, as browsers send
it, or as `?after=`; without either the stream is sent from its beginning.
"""

from typing import Final

from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ..asgi import Application, current_exchange, quart_response
from ..exchange import Exchange
from ..generation.event_answer import EventAnswer
from ..generation.resumable_answers import ResumableAnswers
from .paging import Query

PATH: Final = "/v1/requests/<id>/events"
_LONGEST: Final = 12  # digits


def register(app: Application, answers: ResumableAnswers) -> None:
    async def find(exchange: Exchange, id: str, after: int) -> EventAnswer | Response:
        """Or the refusal of the wrong web process. Raises ApiError for the others."""
        try:
            return await answers.find(EventAnswer, id, exchange.tenant, after, "id")
        except ApiError as error:
            if error.code != "misdirected" or exchange.write_chunk is None:
                raise
            response = quart_response(await app.errors.answer(error, exchange.path, exchange.request_id))
            response.headers["Connection"] = "close"  # HTTP/1.1 clients try again on a connection that they have
            return response

    @app.get(PATH)
    async def resume_events(id: str) -> Response:
        exchange = current_exchange()
        if exchange.method == "HEAD":  # it would take the stream from its reader
            raise ApiError("method_not_allowed", "HEAD is not allowed at this path; use GET or DELETE.")
        query = Query(("after",)).text("after")
        last = exchange.headers.get("Last-Event-ID") if query is None else query
        after = _next(id, last)
        answer = await find(exchange, id, after)
        if isinstance(answer, Response):
            return answer
        return quart_response(answers.follow_events(answer, after, exchange))

    @app.delete(PATH)
    async def stop(id: str) -> Response:
        Query(())
        answer = await find(current_exchange(), id, 0)
        if isinstance(answer, Response):
            return answer
        answers.cancel(answer)
        return Response("{}", content_type="application/json")


def _next(id: str, last: str | None) -> int:
    """The number of the first event that is to be sent. Raises ApiError (400)."""
    if not last:
        return 0
    token, _, number = last.rpartition(":")
    if token not in ("", id) or not (number.isascii() and number.isdecimal() and len(number) <= _LONGEST):
        message = "Last-Event-ID and after: send the id of the last event that you have, or its number."
        raise ApiError("invalid_value", message, param="after")
    return int(number) + 1
