"""The query of a list: how many, after which, and what else a route takes."""

from collections.abc import Collection

from quart import request

from ...protocol.errors import ApiError


class Query:
    """A request's query. Raises ApiError (400) for names that the route does not take."""

    def __init__(self, names: Collection[str]) -> None:
        for name in request.args:
            if name not in names:
                known = ", ".join(names)
                raise ApiError(
                    "unknown_parameter", f"Unknown parameter: {name[:64]}; there are {known}.", param=name[:64]
                )

    def text(self, name: str) -> str | None:
        return request.args.get(name)

    def word(self, name: str, words: tuple[str, ...]) -> str | None:
        """One of `words`, or None if it is not given. Raises ApiError (400)."""
        given = request.args.get(name)
        if given not in (None, *words):
            raise ApiError("invalid_value", f"{name}: send {' or '.join(words)}.", param=name)
        return given

    def limit(self, default: int, most: int) -> int:
        """How many entries a page has at most. Raises ApiError (400)."""
        given = self.number("limit", 1, most)
        return default if given is None else given

    def number(self, name: str, least: int, most: int) -> int | None:
        """None if it is not given. Raises ApiError (400)."""
        given = request.args.get(name)
        if given is None:
            return None
        if not (given.isascii() and given.isdecimal() and len(given) <= 10 and least <= int(given) <= most):
            raise ApiError("integer_out_of_range", f"{name}: send a number from {least} to {most}.", param=name)
        return int(given)
