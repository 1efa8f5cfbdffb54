"""Who may use the server: clients with an API key, and browsers only from pages that origins.py lets in.

The key is checked for every route but the few that `OPEN` names, by the matched endpoint and never by the path's text:
a path that matches nothing is refused as well, so odd spellings of a path show nothing. Keys are compared as digests in
constant time; who sends many wrong ones is slowed down (wrong_keys.py). A key's digest is also the tenant: whose prefix
cache and whose share of the engine a request uses.

With operator keys, what shows the whole server asks for one of these instead, and what shows a key its own (`BOTH`)
shows them everybody's. They open nothing else, so that a key in the configuration of a metrics collector cannot
generate.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256

import trio

from ..protocol.errors import ApiError
from .asgi import Application
from .errors import pause_of_wrong_key
from .exchange import Exchange, Handshake, Headers
from .origins import Origins
from .wrong_keys import WrongKeys

OPEN = frozenset({"page", "page_without_slash", "page_file", "dashboard_page", "endpoints", "live"})  # endpoints
_MODELS = ("load_model", "unload_model", "alias_model")
# With the dashboard's WebSocket.
OPERATORS = frozenset({"doctor", "metrics", "ledger", "load_adapter", "unload_adapter", *_MODELS})
BOTH = frozenset({"usage"})
KEY_IN_QUERY = frozenset({"api_key", "apikey", "key", "token", "access_token", "authorization"})


class Keys:
    """The configured keys, by their SHA-256 in hex. Without any, everybody is the tenant "" and no key is asked for."""

    def __init__(self, digests: Iterable[str], origins: Origins, kind: str = "API key") -> None:
        self._digests = tuple(map(bytes.fromhex, digests))
        self._origins = origins
        self._kind = kind
        self._wrong = WrongKeys()

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, key: bytes, address: str | None) -> str:
        """The tenant of a key; raises ApiError (401, 429) for a wrong one from this address."""
        if not self._digests:
            return ""
        if not (tenant := self._known(key)):
            raise self._wrong.refusal(address, f"The {self._kind} is wrong.", trio.current_time())
        return tenant

    async def tenant_of_frame(self, key: str, address: str | None) -> str:
        """The same for the key in a WebSocket's first frame. A wrong one is answered as late as in a request."""
        try:
            return self.tenant(key.encode(), address)
        except ApiError:
            await pause_of_wrong_key()
            raise

    def _known(self, key: bytes) -> str:
        """The digest of a key that is one of these; else empty."""
        digest = sha256(key).digest()
        known = False
        for other in self._digests:  # all of them, so that the time reveals nothing
            known |= hmac.compare_digest(digest, other)
        return digest.hex() if known else ""

    def tenant_of(self, asked: Handshake) -> str:
        """The tenant of a request by its Authorization or X-API-Key header; raises ApiError (401, 429)."""
        if not self._digests:
            return ""
        if not (key := _given(asked.headers)):
            message = f"An {self._kind} is needed: send the header `Authorization: Bearer KEY`."
            raise ApiError("invalid_api_key", message)
        return self.tenant(key, asked.address)

    def include(self, headers: Headers) -> bool:
        """Whether a request has one of these keys."""
        return bool(self._known(_given(headers)))

    def tenant_of_handshake(self, handshake: Handshake) -> str | None:
        """None where the key is to come in a first frame, as from a page. Raises ApiError (401, 403, 429)."""
        self._origins.refuse_foreign_name(handshake.headers)
        self._origins.refuse_foreign(handshake)
        if self:
            refuse_key_in_query(handshake)
            if handshake.headers.get("Authorization") is None and handshake.headers.get("X-API-Key") is None:
                return None
        return self.tenant_of(handshake)


def _given(headers: Headers) -> bytes:
    """The key of a request; empty if it has none."""
    given = headers.get("Authorization")
    if given is None:
        given = f"Bearer {headers.get('X-API-Key', '')}"  # as Anthropic's clients and some gateways send it
    scheme, _, key = given.partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def refuse_key_in_query(handshake: Handshake) -> None:
    """Raises ApiError (401): query strings end up in logs, so even a valid key in one is refused."""
    if not KEY_IN_QUERY.isdisjoint(name.lower() for name in handshake.args):
        raise ApiError("invalid_api_key", "Send the API key in the Authorization header, not in the query string.")


def register(app: Application, keys: Keys, operators: Keys, origins: Origins) -> None:
    @app.check
    def check(exchange: Exchange) -> None:
        origins.refuse_foreign_name(exchange.headers)
        if exchange.method not in ("GET", "HEAD", "OPTIONS"):
            origins.refuse_foreign(exchange)
        # The opener of a WebSocket checks its handshake whole: a browser sends the key in its first frame.
        handshake = exchange.endpoint in app.socket_endpoints and exchange.headers.get("Upgrade") is not None
        if exchange.endpoint not in OPEN and not handshake:
            as_operator = exchange.endpoint in BOTH and operators.include(exchange.headers)
            asked = operators if as_operator or exchange.endpoint in OPERATORS else keys
            if asked:
                refuse_key_in_query(exchange)
            exchange.tenant = asked.tenant_of(exchange)
