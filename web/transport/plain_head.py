"""Reads the head of a plain request, such as a program's POST of JSON, with one regular expression.

Plain is much less than HTTP/1.1 allows: names, printable ASCII, single lines, each name once, a body of stated
length. Anything else is left to h11. Whatever is accepted here, h11 must read the same way, and a test checks it:
requests are smuggled where two readings differ.
"""

import re
from typing import Final, NamedTuple, overload

HEADER_BYTES: Final = 16 * 1024  # limit of a head, for h11 too

_HEAD: Final = re.compile(
    rb"POST (/[A-Za-z0-9/._~-]+) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9_-]+: ?[!-~](?:[ -~]*[!-~])?\r\n)+)\r\n"
)  # fmt: skip
_FIELD: Final = re.compile("([^:]+): ?([^\r]+)\r\n")
_LENGTH: Final = re.compile("0|[1-9][0-9]{0,9}")

# Fields that change how a message is read, how the connection continues, or who may ask.
_ODD: Final = frozenset(
    {"content-encoding", "expect", "http2-settings", "origin", "te", "trailer", "transfer-encoding", "upgrade"}
)


class PlainHeaders:
    """Fields by lower-case name."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    @overload
    def get(self, key: str) -> str | None: ...

    @overload
    def get(self, key: str, default: str) -> str: ...

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._values.get(key.lower(), default)


class PlainHead(NamedTuple):
    path: str
    headers: PlainHeaders
    size: int  # bytes, including the empty line
    content_length: int


def read_head(data: bytes) -> PlainHead | None:
    """The head at the start of `data`; None if it is not plain or not complete."""
    found = _HEAD.match(data)
    if found is None or found.end() > HEADER_BYTES:
        return None
    fields = _FIELD.findall(found[2].decode("ascii"))
    values = {name.lower(): value for name, value in fields}
    length = values.get("content-length", "")
    if (
        len(values) < len(fields)
        or not _ODD.isdisjoint(values)
        or values.get("content-type") != "application/json"
        or values.get("connection", "keep-alive").lower() != "keep-alive"
        or "host" not in values
        or _LENGTH.fullmatch(length) is None
    ):
        return None
    return PlainHead(found[1].decode("ascii"), PlainHeaders(values), found.end(), int(length))
