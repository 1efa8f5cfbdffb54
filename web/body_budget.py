"""One bound on the memory of all large bodies and WebSocket messages, until they are decoded.

A body may be large, and many clients may send one slowly at the same time. Small ones are not counted: what holds them
is bounded by the number of connections, and they are not to be refused because others are large. A tenant may hold at
most as many bytes as then stay free for all others, like its places for requests (actors/gateway/places.py).
"""

from typing import Final

SMALL_BYTES: Final = 64 * 1024  # of a body that are not counted: one read
LEAST_BYTES: Final = 128 << 20  # for all together; or that many of the largest size, if it is more:
LARGEST_BODIES: Final = 8


class BodyBudget:
    """The bytes that all bodies together may hold."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._held: dict[str, int] = {}  # by tenant; without those that hold none

    def take(self, tenant: str, size: int) -> bool:
        """Whether the tenant may hold so many more bytes; each is given back by `give_back`."""
        held = self._held.get(tenant, 0) + size
        if held > self._left - size:
            return False
        self._left -= size
        self._held[tenant] = held
        return True

    def give_back(self, tenant: str, size: int) -> None:
        self._left += size
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]


def budget_for(max_body_bytes: int) -> BodyBudget:
    return BodyBudget(max(LEAST_BYTES, LARGEST_BODIES * max_body_bytes))


class BodyShare:
    """What one body has of the budget, until it is decoded or given up."""

    __slots__ = ("_budget", "_size", "_taken", "_tenant")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._tenant = ""
        self._size = 0  # of what has arrived
        self._taken = 0

    def grow(self, size: int, tenant: str) -> bool:
        """Whether there is room for so many more bytes; if not, nothing is held. The tenant may become known late."""
        size += self._size
        self.release()
        self._size, self._tenant = size, tenant
        wanted = max(0, size - SMALL_BYTES)
        if wanted and not self._budget.take(tenant, wanted):
            return False
        self._taken = wanted
        return True

    def release(self) -> None:
        """The bytes are gone, or somebody else's now."""
        if self._taken:
            self._budget.give_back(self._tenant, self._taken)
        self._size = self._taken = 0
