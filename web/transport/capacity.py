"""How many connections there may be, in all and from one address.

The bound lies below the limit of open files: beyond that limit nobody is accepted, and whoever holds connections open
locks everybody out. Here a new connection displaces the one that has been idle longest: if its own address has half of
all, the one of that address. Only if none is idle, it is closed unheard.
"""

import logging
import resource
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import trio

log = logging.getLogger("triolet.http")

MAX_FILES: Final = 65_536  # open files that we ask for; a connection takes one, and 10 KiB of memory at least
RESERVED_FILES: Final = 256  # for everything that is no connection
LOG_SECONDS: Final = 10.0  # between two lines about refused connections


def raise_file_limit() -> int:
    """Take as many open files as the system allows, up to MAX_FILES; returns how many connections fit below."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError):  # macOS allows less than it says
            allowed = soft
    return max(allowed - RESERVED_FILES, allowed // 2)


def origin_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the network of an IPv6 address (its first 64 bits)."""
    address = ip_address(host.partition("%")[0])
    return host if address.version == 4 else address.exploded[:19]


class ConnectionPlaces:
    """The places for `most` connections. `displace` ends an idle one, from an origin or any (None), if there is one."""

    share = 0.5  # of them that one address may have

    def __init__(self, most: int, displace: Callable[[str | None], bool]) -> None:
        self._most = most
        self._displace = displace
        self._taken = 0
        self._from: Counter[str] = Counter()
        self._refused = 0
        self._told = -LOG_SECONDS

    def take(self, origin: str | None) -> bool:
        """Whether a connection from there gets a place; None is a Unix socket. Each place is given back by `leave`."""
        crowded = origin is not None and self._from[origin] >= max(1, int(self._most * self.share))
        if (crowded or self._taken >= self._most) and not self._displace(origin if crowded else None):
            self._tell(origin)
            return False
        self._taken += 1
        if origin is not None:
            self._from[origin] += 1
        return True

    def leave(self, origin: str | None) -> None:
        self._taken -= 1
        if origin is not None:
            self._from[origin] -= 1
            if not self._from[origin]:
                del self._from[origin]

    def _tell(self, origin: str | None) -> None:
        self._refused += 1
        if (now := trio.current_time()) - self._told >= LOG_SECONDS:
            log.warning(
                "%d connections refused, the last from %s: %d of %d places are taken, %d from there",
                self._refused, origin, self._taken, self._most, 0 if origin is None else self._from[origin],
            )  # fmt: skip
            self._refused, self._told = 0, now
