"""GET /v1/usage: what requests used, one by one or summed up. No text of a request is in it."""

from typing import Literal

from msgspec import Struct

from .errors import ErrorCode
from .events import FinishReason

GroupBy = Literal["day", "hour", "model"]


class UsageRecord(Struct, frozen=True, kw_only=True, tag_field="object", tag="usage.record"):
    """A request that has ended. The columns of a record, in their order (actors/usage/table.py)."""

    id: str
    request_id: str  # X-Request-Id
    key_digest: str  # SHA-256 of its API key, in hexadecimal digits; empty in a server without keys
    model: str  # as the answer calls it
    adapter: str | None
    prompt_tokens: int
    completion_tokens: int  # that were made for the client, also if it left before it got them
    cached_tokens: int  # of the prompt
    arrived: float  # Unix time
    ended: float
    queue_seconds: float | None  # to its first step; null: it never came so far
    first_token_seconds: float | None  # to its first text, from its arrival
    finish_reason: FinishReason
    error: ErrorCode | None
    total_seconds: float


class UsageTotal(Struct, frozen=True, kw_only=True, tag_field="object", tag="usage.total"):
    """The requests of one key in a day, in an hour, or to a model. The columns of a sum, in their order."""

    start: int | None  # of the day or hour, in Unix time
    model: str | None
    adapter: str | None
    key_digest: str
    requests: int
    errors: int  # requests that ended with an error code
    cancelled: int  # whose client left
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class UsageList(Struct, frozen=True, kw_only=True):
    """Records or totals, the newest first; of records, `last_id` is the `after` of the next page."""

    data: list[UsageRecord | UsageTotal]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None
    object: Literal["list"] = "list"
