"""Server-sent events: how a Struct or a text is written in a line of `data:`."""

from typing import Final

import msgspec

encode: Final = msgspec.json.Encoder().encode

_LINE_ENDS = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029")


def one_line(data: bytes) -> bytes:
    """Escapes characters that end a line in Unicode but not in SSE: clients using `str.splitlines` would cut there."""
    if not data.isascii():
        for character, escape in _LINE_ENDS:
            data = data.replace(character, escape)
    return data


def named_event(struct: msgspec.Struct) -> bytes:
    """An event of the name that the Struct has as its type."""
    return b"event: %b\ndata: %b\n\n" % (str(struct.__struct_config__.tag).encode(), one_line(encode(struct)))
