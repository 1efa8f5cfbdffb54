"""The places for requests: how many there are, and how many one tenant may hold. Pure.

With several API keys, a tenant may hold at most as many places as then remain free for all others. So one tenant gets
at most half of the places, two a third each: a newcomer always finds room, without a table of shares.
"""

from typing import Final

from ...protocol.errors import ApiError
from ...protocol.explanation import TenantShare

RETRY_SECONDS: Final = 1  # a place becomes free with every request that ends


class Places:
    """How many places each tenant holds."""

    def __init__(self, limit: int, *, several_tenants: bool) -> None:
        self._limit = limit
        self._several_tenants = several_tenants
        self._taken = 0
        self._held: dict[str, int] = {}  # by tenant; without those that hold none

    def held_by(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def check(self, tenant: str) -> None:
        """Raises ApiError if there is no place for this tenant."""
        if self._taken >= self._limit:
            raise self.full()
        held = self.held_by(tenant)
        free = self._limit - self._taken - 1
        if self._several_tenants and held >= max(1, free):
            message = (
                f"this API key has {held} unfinished requests; with one more, only {free} of {self._limit} places "
                "would be free for everybody else; wait for some to end"
            )
            raise ApiError("rate_limit_exceeded", message, retry_after=RETRY_SECONDS)

    def full(self) -> ApiError:
        message = f"all {self._limit} places for requests are taken (--max-requests)"
        return ApiError("server_overloaded", message, retry_after=RETRY_SECONDS)

    def take(self, tenant: str) -> None:
        """Take a place; call `check` first."""
        self._taken += 1
        self._held[tenant] = self.held_by(tenant) + 1

    def give_back(self, tenant: str) -> None:
        self._taken -= 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]

    def share(self, tenant: str) -> TenantShare:
        """The tenant's share under `check`: with the others as they are, it is refused once it holds `limit`."""
        used = self.held_by(tenant)
        limit = self._limit - (self._taken - used)
        if self._several_tenants:
            limit = max(1, limit // 2)  # held < max(1, limit - held - 1), solved for what is held afterwards
        return TenantShare(used=used, limit=limit)
