"""A tool call put together from its pieces."""

from typing import Any

import pytest

from triolet.protocol.events import CallStart
from triolet.web.generation.collected import CollectedCall


@pytest.mark.parametrize(
    ("pieces", "value"),
    [
        (['{"city"', ':"Rome"}'], {"city": "Rome"}),
        (['{"city":"Ro'], None),
        (["[1]"], None),
        (['{"a":' * 10**5, "1", "}" * 10**5], None),  # deeper than the decoder goes
    ],
)
def test_arguments_as_an_object(pieces: list[str], value: dict[str, Any] | None) -> None:  # Any: JSON
    call = CollectedCall(CallStart(call=0, id="a", name="f"))
    call.pieces += pieces
    assert call.arguments_object() == value
