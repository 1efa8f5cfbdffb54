"""Which pages' scripts may use the server, and what browsers are told about it (CORS).

A server that asks for no key answers under no name but localhost, addresses and its own: a page anywhere in the world
may let its own name point to 127.0.0.1 (DNS rebinding), and the browser then takes that server for the page's own.
`--allow-origin` adds names. Programs send no Origin, but their Host is checked all the same.

Browsers ask before they send a key or JSON to another origin (a preflight request). That question carries no key, so it
is answered without one. Cookies are never allowed, so a page can only use keys that it knows itself.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from quart_trio.wrappers import TrioResponse as Response

from ..protocol.errors import ApiError
from .asgi import Application, current_exchange
from .exchange import EXPLAIN_HEADER, RESUME_HEADER, Handshake, Headers

ANY: Final = "*"
METHODS: Final = "GET, HEAD, POST, DELETE"
_RATES: Final = ", ".join(
    f"x-ratelimit-{what}-{kind}" for kind in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)
READABLE: Final = f"X-Request-Id, Request-Id, Retry-After, {EXPLAIN_HEADER}, {RESUME_HEADER}, {_RATES}"  # by scripts
PREFLIGHT_SECONDS: Final = 600  # that a browser need not ask again
_SHOWN: Final = 100  # characters of a name in an error


class Origins:
    """The allowed origins, as `--allow-origin` writes them.

    `own_name` is that of a server without keys, which answers under no other names than this, localhost, addresses and
    those of allowed origins. None: under any.
    """

    def __init__(self, allowed: Iterable[str], own_name: str | None) -> None:
        self._allowed = frozenset(allowed)
        self._names: frozenset[str] | None = None
        if own_name is not None and ANY not in self._allowed:
            self._names = frozenset({"localhost", own_name.lower(), *(_host_of(each) for each in self._allowed)})

    def __bool__(self) -> bool:
        return bool(self._allowed)

    def allows(self, origin: str | None) -> bool:
        return origin is not None and (origin in self._allowed or ANY in self._allowed)

    def refuse_foreign_name(self, headers: Headers) -> None:
        """Raises ApiError (403) for a request to another server's name."""
        host = headers.get("Host", "")
        if self._names is None or not host:  # browsers always send one
            return
        name = _name_in(host)
        if not (name in self._names or name.endswith(".localhost") or _is_address(name)):
            raise ApiError(
                "host_forbidden",
                f"This server asks for no key, so it does not answer as {name[:_SHOWN]!r}: use localhost, an IP "
                "address or the name of --host, or start it with --api-key, or --allow-origin for that name.",
            )

    def refuse_foreign(self, handshake: Handshake) -> None:
        """Raises ApiError (403) for a request from a page that is neither the server's own nor of an allowed origin."""
        origin = handshake.headers.get("Origin")
        if origin is None or self.allows(origin):
            return
        try:
            page = urlsplit(origin)
        except ValueError:
            page = urlsplit("")
        if page.netloc.lower() != handshake.headers.get("Host", "").lower() or not page.netloc:
            remedy = f"; --allow-origin {origin} would let this one in" if page.netloc else ""
            raise ApiError("origin_forbidden", f"Pages of other origins may not use this server{remedy}.")


def allow_scripts(app: Application, origins: Origins) -> None:
    """Answer preflight requests and mark the answers that scripts of allowed origins may read."""
    if not origins:
        return

    @app.before_request
    async def answer_preflight() -> Response | None:
        headers = current_exchange().headers
        method = headers.get("Access-Control-Request-Method")
        if current_exchange().method != "OPTIONS" or method is None or not origins.allows(headers.get("Origin")):
            return None
        response = Response(status=204)
        response.headers["Access-Control-Allow-Methods"] = METHODS
        response.headers["Access-Control-Allow-Headers"] = headers.get("Access-Control-Request-Headers", "")
        response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
        return response

    @app.after_request
    async def mark(response: Response) -> Response:
        origin = current_exchange().headers.get("Origin")
        response.headers.add("Vary", "Origin")
        if origin is not None and origins.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = READABLE
        return response


def _host_of(origin: str) -> str:
    return urlsplit(origin).hostname or ""


@lru_cache(maxsize=64)
def _name_in(host: str) -> str:
    """The name, in lower case, without the port; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=64)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)  # an IPv6 one may name its interface
    except ValueError:
        return False
    return True
