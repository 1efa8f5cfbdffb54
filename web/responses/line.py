"""A response as a line of a batch: of its own input alone, and stored nowhere but in the batch's output."""

import time

from ...protocol.errors import ApiError
from ...protocol.response_requests import CreateResponse
from ..generation.asked import Asked, Origin, ServedModel
from .answer import GrowingResponse
from .events import ResponseEvents
from .reply import begun_response
from .responses import read_response
from .whole import WholeResponse


def read_line(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    """Raises ApiError (400, 404), also for what only a request over HTTP may ask for."""
    body, _, request = read_response(served, origin, data)
    _refuse_what_needs_the_server(body)
    if request is None:
        raise _refused("input", "an item_reference", "send the items themselves")
    growing = GrowingResponse(begun_response(body, request, int(time.time()), store=False), request.id)
    return Asked(request, ResponseEvents(growing) if body.stream else WholeResponse(growing))


def _refuse_what_needs_the_server(body: CreateResponse) -> None:
    if body.previous_response_id is not None:
        raise _refused("previous_response_id", "a stored response", "send the conversation as input")
    for name, value, given in (
        ("store", "true", body.store),
        ("background", "true", body.background),
        ("truncation", "auto", body.truncation == "auto"),
    ):
        if given:
            raise _refused(name, value, "leave it out")


def _refused(param: str, what: str, remedy: str) -> ApiError:
    return ApiError("unsupported_parameter", f"{param}: a line of a batch cannot have {what}; {remedy}.", param=param)
