"""How deeply a client's JSON values may be nested: they cross processes, and an encoder recurses."""

from collections.abc import Iterable
from typing import Any, Final, cast

from ...protocol.errors import ApiError

MAX_DEPTH: Final = 32  # of template variables, documents and tools


def check_depth(value: Any, param: str, left: int = MAX_DEPTH) -> None:  # Any: a JSON value
    """Raises ApiError (400)."""
    if isinstance(value, dict | list | tuple):
        if not left:
            raise ApiError("invalid_value", f"{param}: at most {MAX_DEPTH} levels of nesting are allowed.", param=param)
        for child in cast("Iterable[Any]", value.values() if isinstance(value, dict) else value):
            check_depth(child, param, left - 1)
