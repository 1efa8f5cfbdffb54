"""Reads a POST body: JSON in UTF-8, uncompressed, of bounded size, decoded to its Struct."""

from typing import TypeVar

import msgspec

from ..exchange import Exchange
from .decode import decode

T = TypeVar("T")


async def read_body(exchange: Exchange, decoder: "msgspec.json.Decoder[T]") -> T:
    """Raises ApiError (400, 415), and whatever says that the body is too large (413) or too slow (408)."""
    return decode(await exchange.json_body(), decoder)
