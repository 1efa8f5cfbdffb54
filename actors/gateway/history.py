"""The facts about one request other than its text, and the memory of recently ended requests.

A `History` is a snapshot for explanations and traces: times, counts and numbers, never content. Times are seconds of
the front's clock. Pure.
"""

from collections import OrderedDict
from typing import Final, Literal

from msgspec import Struct

from ...protocol.events import FinishReason, Usage

REMEMBERED: Final = 1000  # ended requests; some 600 bytes each


class History(Struct, frozen=True, kw_only=True):
    """One request up to now, or up to its end."""

    id: str
    name: str
    tenant: str
    traceparent: str
    operation: Literal["chat", "text_completion"]
    model: str
    choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    usage: Usage
    wall_clock: float  # Unix time minus the front's clock
    arrival: float
    tokenized: float | None
    started: float | None
    first_token: float | None
    finished: float | None = None
    reason: FinishReason | None = None
    reasons: tuple[FinishReason, ...] = ()  # of its choices, in the order in which they ended
    error: str | None = None


class RecentRequests:
    """The names of live requests and the histories of ended ones; the oldest are forgotten first."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._ended: OrderedDict[str, History] = OrderedDict()
        self._ids: dict[tuple[str, str], str] = {}  # (tenant, name) of live and remembered ones -> latest such request

    def begin(self, tenant: str, name: str, id: str) -> None:
        """Add a request that its client may ask about by name."""
        if name:
            self._ids[tenant, name] = id

    def end(self, history: History) -> None:
        self._ended[history.id] = history
        if len(self._ended) > self._limit:
            _, oldest = self._ended.popitem(last=False)
            key = oldest.tenant, oldest.name
            if self._ids.get(key) == oldest.id:
                del self._ids[key]

    def id_of(self, tenant: str, wanted: str) -> str:
        """The id behind a name; an unknown name may itself be an id."""
        return self._ids.get((tenant, wanted), wanted)

    def ended(self, id: str) -> History | None:
        return self._ended.get(id)
