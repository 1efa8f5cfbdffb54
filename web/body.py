"""Reads a POST body: JSON in UTF-8, uncompressed, of bounded size, decoded to its Struct."""

from typing import TypeVar

import msgspec

from ..protocol.errors import ApiError
from .connection import current_exchange
from .decode import decode

T = TypeVar("T")


async def read_body(decoder: "msgspec.json.Decoder[T]") -> T:
    """Raises ApiError (415, 400); Quart raises for bodies that are too large (413) or too slow (408).

    Other content types are refused because a browser sends them across origins without asking first, and compressed
    bodies because a few kilobytes of them can be gigabytes.
    """
    exchange = current_exchange()
    if exchange.mimetype != "application/json" or exchange.mimetype_params.get("charset", "utf-8").lower() != "utf-8":
        raise ApiError("unsupported_media_type", "Send the body as `Content-Type: application/json` in UTF-8.")
    if exchange.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError("unsupported_encoding", "Compressed bodies are not accepted.")
    return decode(await exchange.get_data(cache=False, as_text=False, parse_form_data=False), decoder)
