"""Who may use the server: clients with an API key, and browsers only from pages of this server.

The key is checked for every route but the few that `OPEN` names, by the matched endpoint and never by the path's text:
a path that matches nothing is refused as well, so odd spellings of a path show nothing. Keys are compared as digests in
constant time. A key's digest is also the tenant: whose prefix cache and whose share of the engine a request uses.

A server that asks for no key serves browsers under no name but localhost: a page anywhere in the world may let its own
name point to 127.0.0.1 (DNS rebinding), and the browser then takes that server for the page's own.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlsplit

from ..protocol.errors import ApiError
from .asgi import Application
from .exchange import Exchange, Handshake, Headers

OPEN = frozenset({"page", "page_file", "dashboard_page", "live"})  # endpoints
KEY_IN_QUERY = frozenset({"api_key", "apikey", "key", "token", "access_token", "authorization"})


class Keys:
    """The configured keys. Without any, everybody is the one tenant "" and no key is asked for."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, key: bytes) -> str:
        """The tenant of a key; raises ApiError (401) for a wrong one."""
        if not self._digests:
            return ""
        digest = _digest(key)
        known = False
        for other in self._digests:  # all of them, so that the time reveals nothing
            known |= hmac.compare_digest(digest, other)
        if not known:
            raise ApiError("invalid_api_key", "The API key is wrong.")
        return digest.hex()

    def tenant_of(self, headers: Headers) -> str:
        """The tenant of a request by its Authorization header; raises ApiError (401)."""
        if not self._digests:
            return ""
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError("invalid_api_key", "An API key is needed: send the header `Authorization: Bearer KEY`.")
        return self.tenant(key.strip().encode("latin-1"))

    def tenant_of_handshake(self, handshake: Handshake) -> str | None:
        """None where the key is to come in a first frame, as from a page. Raises ApiError (401, 403)."""
        refuse_foreign_origin(handshake, own_names_only=not self)
        if self:
            refuse_key_in_query(handshake)
            if handshake.headers.get("Authorization") is None:
                return None
        return self.tenant_of(handshake.headers)


def refuse_foreign_origin(handshake: Handshake, own_names_only: bool) -> None:
    """Raises ApiError (403) if a browser sends a request from another server's page. Other clients send no Origin.

    With `own_names_only` the page must have come from an address or from localhost: a server without keys.
    """
    origin = handshake.headers.get("Origin")
    if origin is None:
        return
    try:
        same = urlsplit(origin).netloc.lower() == handshake.headers.get("Host", "").lower() != ""
    except ValueError:
        same = False
    if not same:
        raise ApiError("origin_forbidden", "Pages of other origins may not use this server.")
    name = urlsplit(origin).hostname or ""
    if own_names_only and not (_is_address(name) or name == "localhost" or name.endswith(".localhost")):
        raise ApiError(
            "origin_forbidden",
            f"Pages may not use this server under the name {name!r}: open it as localhost, or start it with --api-key.",
        )


def refuse_key_in_query(handshake: Handshake) -> None:
    """Raises ApiError (401): query strings end up in logs, so even a valid key in one is refused."""
    if not KEY_IN_QUERY.isdisjoint(name.lower() for name in handshake.args):
        raise ApiError("invalid_api_key", "Send the API key in the Authorization header, not in the query string.")


def register(app: Application, keys: Keys) -> None:
    @app.check
    def check(exchange: Exchange) -> None:
        if exchange.method not in ("GET", "HEAD", "OPTIONS"):
            refuse_foreign_origin(exchange, own_names_only=not keys)
        # The opener of a WebSocket checks its handshake whole: a browser sends the key in its first frame.
        handshake = exchange.endpoint in app.sockets and exchange.headers.get("Upgrade") is not None
        if exchange.endpoint not in OPEN and not handshake:
            if keys:
                refuse_key_in_query(exchange)
            exchange.tenant = keys.tenant_of(exchange.headers)


def _is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])  # an IPv6 address may name its interface
    except ValueError:
        return False
    return True


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
