"""What API keys with limits may use: requests and tokens a minute, and unfinished requests. Callers pass the time.

Requests and tokens are counted in buckets, which hold a minute's worth, begin full and fill evenly. A request is let in
while none of its key's is empty. Its tokens are known only at its end and taken then, so the bucket may go below zero:
its key waits until it has filled again. Lines of batches take tokens alone, and leave half of the bucket to the key's
other requests, by what lines have used so far; those that are refused run later.
"""

from collections.abc import Iterable
from math import ceil, inf
from typing import Final, NamedTuple

from ...protocol.errors import ApiError
from ...protocol.settings import BLOCK_SIZE, KeySettings
from .places import RETRY_SECONDS

MINUTE: Final = 60.0
_FIRST_LINES: Final = 16  # of a batch that a minute's tokens are taken to be enough for, before any has ended
_FADING: Final = 8  # lines over which their tokens are averaged
_ROUNDING: Final = 1e-6  # seconds: more than the error of any sum of times here


class Bucket:
    """At most `limit` units; as many come back in a minute. It knows when it will be full, so nothing has to tick."""

    __slots__ = ("_full_at", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._full_at = -inf

    def left(self, now: float) -> int:
        """Whole units; below zero after more was taken than was there."""
        return self.limit - ceil(max(self.reset(now) - _ROUNDING, 0.0) * self.limit / MINUTE)

    def take(self, units: int, now: float) -> None:
        self._full_at = max(self._full_at, now) + units * MINUTE / self.limit

    def reset(self, now: float) -> float:
        """Seconds until it is full."""
        return max(self._full_at - now, 0.0)

    def wait(self, now: float) -> float:
        """Seconds until there is a unit; 0 if there is one."""
        seconds = self.reset(now) - (self.limit - 1) * MINUTE / self.limit
        return seconds if seconds > _ROUNDING else 0.0


class Level(NamedTuple):
    """One bucket of a key, as its clients are told."""

    kind: str  # "requests" or "tokens"
    limit: int
    left: int
    reset: float  # seconds until it is full


class _Use:
    """What one key has used."""

    __slots__ = ("key", "line_tokens", "lines", "requests", "tokens", "unfinished")

    def __init__(self, key: KeySettings) -> None:
        self.key = key
        self.requests = Bucket(key.requests_per_minute) if key.requests_per_minute is not None else None
        self.tokens = Bucket(key.tokens_per_minute) if key.tokens_per_minute is not None else None
        self.unfinished = 0
        self.lines = 0  # of batches, unfinished
        self.line_tokens = (key.tokens_per_minute or 0) / _FIRST_LINES  # that each may use, by those before

    def wait_for_tokens(self, bucket: Bucket, now: float, *, background: bool) -> float:
        """Seconds until another request may begin."""
        if not background:
            return bucket.wait(now)
        expected = self.lines * self.line_tokens * MINUTE / bucket.limit
        return max(bucket.reset(now) + expected - MINUTE / 2, 0.0)


class Quotas:
    """The keys with limits, by tenant. All others are let in, and nothing is kept of them."""

    def __init__(self, keys: Iterable[KeySettings] = ()) -> None:
        self._uses = {key.sha256: _Use(key) for key in keys}

    def name(self, tenant: str) -> str:
        """Of the tenant's key; empty if it has none."""
        use = self._uses.get(tenant)
        return use.key.name if use else ""

    def kv_tokens(self, tenant: str) -> int | None:
        """How much of the KV cache the tenant may use, in whole blocks; None: all of it."""
        use = self._uses.get(tenant)
        tokens = use.key.kv_tokens if use else None
        return None if tokens is None else tokens // BLOCK_SIZE * BLOCK_SIZE

    def check(self, tenant: str, now: float, *, background: bool = False) -> None:
        """Raises ApiError (429) if the tenant may not begin a request now."""
        if (use := self._uses.get(tenant)) is None:
            return
        key, waits = use.key, list[tuple[float, str]]()
        if use.tokens is not None:
            seconds = use.wait_for_tokens(use.tokens, now, background=background)
            waits.append((seconds, f"{key.tokens_per_minute} tokens a minute (tokens_per_minute)"))
        if not background and use.requests is not None:
            waits.append((use.requests.wait(now), f"{key.requests_per_minute} requests a minute (requests_per_minute)"))
        if not background and key.concurrent is not None and use.unfinished >= key.concurrent:
            waits.append((RETRY_SECONDS, f"{key.concurrent} unfinished requests (concurrent)"))
        seconds, limit = max(waits, default=(0.0, ""))
        if seconds > 0:
            name = f" {key.name}" if key.name else ""
            retry_after = max(ceil(seconds), 1)
            message = f"the API key{name} may use {limit} and has used them; try again in {retry_after} s"
            raise ApiError("rate_limit_exceeded", message, retry_after=retry_after)

    def begin(self, tenant: str, now: float, *, background: bool = False) -> None:
        """A request is let in; call `check` first, and `end` later."""
        if (use := self._uses.get(tenant)) is None:
            return
        if background:
            use.lines += 1
            return
        use.unfinished += 1
        if use.requests is not None:
            use.requests.take(1, now)

    def end(self, tenant: str, tokens: int, now: float, *, background: bool = False) -> None:
        """The request has ended, and used so many tokens."""
        if (use := self._uses.get(tenant)) is not None:
            if background:
                use.lines -= 1
                use.line_tokens += (tokens - use.line_tokens) / _FADING
            else:
                use.unfinished -= 1
            if use.tokens is not None:
                use.tokens.take(tokens, now)

    def levels(self, tenant: str, now: float) -> list[Level]:
        """What is left of the tenant's limits for each minute."""
        if (use := self._uses.get(tenant)) is None:
            return []
        buckets = (("requests", use.requests), ("tokens", use.tokens))
        return [Level(kind, one.limit, one.left(now), one.reset(now)) for kind, one in buckets if one is not None]
