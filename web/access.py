"""`--access-log`: a line for each HTTP exchange, when it is over. Never a body, a key or a query."""

import logging
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import trio

from .exchange import Exchange

if TYPE_CHECKING:
    from ..actors.gateway.gateway import Gateway
    from ..actors.gateway.gateways import Gateways

_LOG = logging.getLogger("triolet.access")
_TOKEN: Final = re.compile(r"^/v1/requests/[^/]*/")  # who has the token of a stream may read it (routes/resume.py)


def log_exchange(gateway: "Gateway | Gateways", exchange: Exchange) -> None:
    """Method, path, status (none: the client left before the answer), milliseconds, id, tokens of a generation."""
    fields: dict[str, object] = {
        "method": exchange.method,
        "path": quote(_TOKEN.sub("/v1/requests/-/", exchange.path)),  # decoded, it could hold a line's end
        "status": exchange.status,
        "ms": round((trio.current_time() - exchange.began) * 1000, 1),
        "request_id": exchange.request_id,
    }
    history = gateway.history(exchange.generation, exchange.tenant) if exchange.generation is not None else None
    if history is not None:
        fields |= {"prompt_tokens": history.usage.prompt_tokens, "completion_tokens": history.usage.completion_tokens}
    log_access(fields)


def log_socket(path: str) -> None:
    """A WebSocket was opened. Its requests have their own lines in `triolet.requests`."""
    log_access({"method": "GET", "path": path, "status": 101})


def log_access(fields: dict[str, object]) -> None:
    status = fields["status"]
    words = [f"{fields['method']} {fields['path']} {'-' if status is None else status}"]
    words += [f"{name}={value}" for name, value in fields.items() if name not in ("method", "path", "status")]
    _LOG.info("%s", " ".join(words), extra={"fields": fields})
