"""What becomes of an exception that a request ends with."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest

from triolet.protocol.errors import ApiError
from triolet.web.errors import ErrorContents


class Body:
    """A request's body, as some frame holds it."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_an_answered_error_frees_the_request_without_a_garbage_collection() -> None:
    body = Body()
    freed = weakref.ref(body)

    def handler(body: Body) -> None:
        error = ApiError("invalid_value", "no")  # the frame holds its own exception, as those of libraries do
        try:
            raise ValueError(body)
        except ValueError:
            raise error  # noqa: B904 - the context must be freed as well

    contents, status = ErrorContents(Counter()), 0
    try:
        handler(body)
    except ApiError as error:
        status = contents(error, "/", "").status
    del body
    assert (status, freed()) == (400, None)
