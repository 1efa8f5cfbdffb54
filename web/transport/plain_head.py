"""The head of a plain request, read by one expression: a POST of JSON by a program, with nothing else to look at.

Plain is much less than HTTP/1.1 allows: names, printable ASCII, single lines, each name once, a body of a stated
length. What is anything else is left to h11. Whatever is accepted here, h11 reads in the same way, and a test holds
that: two readings of one request are how requests are smuggled.
"""

import re
from typing import Final, NamedTuple, overload

HEADER_BYTES: Final = 16 * 1024  # of a head, whoever reads it

_HEAD: Final = re.compile(
    rb"POST (/[A-Za-z0-9/_]+) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9_-]+: ?[!-~](?:[ -~]*[!-~])?\r\n)+)\r\n"
)  # fmt: skip
_FIELD: Final = re.compile("([^:]+): ?([^\r]+)\r\n")
_LENGTH: Final = re.compile("0|[1-9][0-9]{0,9}")

# What changes how a message is read, how the connection goes on, or who may ask.
_ODD: Final = frozenset(
    {"content-encoding", "expect", "http2-settings", "origin", "te", "trailer", "transfer-encoding", "upgrade"}
)


class PlainHeaders:
    """By name in lower case."""

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
    size: int  # bytes, the empty line included
    content_length: int


def read_head(data: bytes) -> PlainHead | None:
    """The head that `data` begins with; None where it is not plain, or not all there."""
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
