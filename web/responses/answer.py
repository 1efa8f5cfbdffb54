"""A response while it grows: what a request's events make of it, and the events that its stream says. Pure.

A stream begins with `response.created`, whatever comes, and has exactly one terminal event. The caller supplies the
time of the end.
"""

from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec

from ...protocol.errors import REGISTRY, ApiError
from ...protocol.events import Finished, FinishReason, Token
from ...protocol.response_answers import (
    IncompleteDetails,
    ItemStatus,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseObject,
    ResponseStatus,
    StreamedEvent,
    response_usage,
)
from .output import Output
from .request import restated

STATUS_OF_REASON: dict[FinishReason, ResponseStatus] = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "deadline": "incomplete",
    "stalled": "incomplete",
    "cancelled": "cancelled",
    "error": "failed",
}


class GrowingResponse:
    """`response` is the object as it stands; its `output` comes with the end."""

    def __init__(self, response: ResponseObject, request_id: str) -> None:
        self.response = response
        self.number: Callable[[], int] = partial(next, count())  # of the next event; no method, which would be a cycle
        self.output = Output(request_id, self.number)
        self._begun = False

    def begin(self) -> list[StreamedEvent]:
        """The first events; none if they were said."""
        if self._begun:
            return []
        self._begun = True
        self.response = msgspec.structs.replace(self.response, status="in_progress")
        return [
            ResponseCreated(sequence_number=self.number(), response=self.response),
            ResponseInProgress(sequence_number=self.number(), response=self.response),
        ]

    def token(self, token: Token) -> list[StreamedEvent]:
        return [*self.begin(), *self.output.token(token)]

    def finish(self, finished: Finished, now: int) -> list[StreamedEvent]:
        """Its end, at `now` seconds since 1970."""
        status = STATUS_OF_REASON[finished.reason]
        events = [*self.begin(), *self.output.close(_item_status(status))]
        self.response = msgspec.structs.replace(
            self.response,
            status=status,
            completed_at=now if status == "completed" else None,
            incomplete_details=IncompleteDetails() if status == "incomplete" else None,
            output=self.output.items,
            usage=response_usage(finished.usage),
            triolet_finish_reason=finished.reason,
        )
        event = ResponseCompleted if status == "completed" else ResponseIncomplete
        return [*events, event(sequence_number=self.number(), response=self.response)]

    def fail(self, error: ApiError) -> list[StreamedEvent]:
        """Its end by an error after its beginning."""
        error = restated(error)
        events = [*self.begin(), *self.output.close("incomplete")]
        self.response = msgspec.structs.replace(
            self.response, status="failed", error=_response_error(error), output=self.output.items
        )
        return [*events, ResponseFailed(sequence_number=self.number(), response=self.response)]


def _item_status(status: ResponseStatus) -> ItemStatus:
    return "completed" if status == "completed" else "incomplete"


def _response_error(error: ApiError) -> ResponseError:
    """In the few codes that OpenAI's clients know."""
    kind = REGISTRY[error.code]
    if kind.type == "rate_limit_error":
        return ResponseError(code="rate_limit_exceeded", message=error.message)
    return ResponseError(code="server_error" if kind.status >= 500 else "invalid_prompt", message=error.message)
