"""A response that its client gets whole."""

import time
from collections.abc import Iterable

from ...protocol.errors import ApiError
from ...protocol.events import Finished, StreamEvent, Token
from ...protocol.response_answers import ResponseObject
from ..generation.asked import Whole
from .answer import GrowingResponse
from .request import restated


class WholeResponse(Whole):
    def __init__(self, answer: GrowingResponse) -> None:
        self._answer = answer

    def extend(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, Token):
                self._answer.token(event)

    def body(self, finished: Finished) -> ResponseObject:
        self._answer.finish(finished, int(time.time()))
        return self._answer.response

    def worded(self, error: ApiError) -> ApiError:
        return restated(error)
