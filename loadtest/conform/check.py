"""What a check is: a function that uses a server as a client would and raises where it breaks what clients rely on.

A check's docstring is its line in the table. Where the server refuses the feature itself, or has no such endpoint, that
is no failure: the check raises NotOffered.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from msgspec import Struct

from .server import ExaminedServer

Verdict = Literal["ok", "fails", "not offered"]
Check = Callable[[ExaminedServer], Awaitable[None]]


class Fails(Exception):
    """The server breaks the contract; the message says how."""


class NotOffered(Exception):
    """The server says that it does not do this; the message is its own."""


class CheckGroup(NamedTuple):
    """Checks of one part of the API."""

    name: str
    checks: tuple[Check, ...]


class CheckResult(Struct, frozen=True, kw_only=True):
    """One line of the table. `detail`: how it fails, or the server's refusal."""

    group: str
    check: str
    verdict: Verdict
    detail: str = ""


def expect(holds: object, otherwise: str) -> None:
    """Raises Fails unless it holds."""
    if not holds:
        raise Fails(otherwise)


def title(check: Check) -> str:
    return (check.__doc__ or check.__name__).strip().split("\n")[0].rstrip(".")
