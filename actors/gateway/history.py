"""The facts about one request other than its text: its record while it lives, its history, and recently ended requests.

A `History` is a snapshot for explanations and traces: times, counts and numbers, never content. Times are seconds of
the front's clock.
"""

from collections import OrderedDict
from typing import Final, Literal

from msgspec import Struct

from ...protocol.events import Failed, Finished, FinishReason, TerminalEvent, Timing, Usage
from ...protocol.requests import ChatPrompt, Generate
from .credit import CreditLine
from .outbox import Outbox

REMEMBERED: Final = 1000  # ended requests; some 600 bytes each


class History(Struct, frozen=True, kw_only=True):
    """One request up to now, or up to its end."""

    id: str
    name: str
    tenant: str
    traceparent: str
    operation: Literal["chat", "text_completion"]
    model: str  # as served: an adapter's name, if there is one
    adapter: str | None = None
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
    compiling: bool = False  # its grammar, or waiting for that
    finished: float | None = None
    reason: FinishReason | None = None
    reasons: tuple[FinishReason, ...] = ()  # of its choices, in the order in which they ended
    error: str | None = None


class StreamRecord:
    """One accepted, unfinished request: its outbox, credit, counts and times. Only the gateway and TokenTimes write."""

    __slots__ = (
        "cached_tokens", "compiling", "completion_tokens", "credit", "first_token_at", "last_token_at", "outbox",
        "prompt_tokens", "reasoning_tokens", "reasons", "request", "started_at", "tokenized_at", "wall_clock",
    )  # fmt: skip

    def __init__(self, request: Generate, outbox: Outbox, credit: CreditLine, wall_clock: float) -> None:
        self.request = request
        self.wall_clock = wall_clock  # Unix time minus the front's clock
        self.outbox = outbox
        self.credit = credit
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.compiling = False
        self.tokenized_at: float | None = None
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = [0.0] * (len(request.prompts) * request.n)  # by choice; 0: no token yet, or ended
        self.reasons: list[FinishReason] = []  # of ended choices

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )

    def timing(self, now: float) -> Timing:
        arrival = self.request.arrival_time
        return Timing(
            queued=None if self.started_at is None else self.started_at - arrival,
            ttft=None if self.first_token_at is None else self.first_token_at - arrival,
            total=now - arrival,
        )

    def history(self, event: TerminalEvent | None = None, now: float | None = None) -> History:
        """The history up to now, or up to its terminal event, which came at `now`."""
        request = self.request
        reason: FinishReason | None = None
        if event is not None:
            reason = event.reason if isinstance(event, Finished) else "error"
        return History(
            id=request.id,
            name=request.name,
            tenant=request.tenant,
            traceparent=request.traceparent,
            operation="chat" if isinstance(request.prompts[0], ChatPrompt) else "text_completion",
            model=request.served_as,
            adapter=request.adapter.name if request.adapter else None,
            choices=len(request.prompts) * request.n,
            max_tokens=request.max_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            usage=self.usage(),
            wall_clock=self.wall_clock,
            arrival=request.arrival_time,
            tokenized=self.tokenized_at,
            started=self.started_at,
            first_token=self.first_token_at,
            compiling=self.compiling,
            finished=now,
            reason=reason,
            reasons=tuple(self.reasons),
            error=event.code if isinstance(event, Failed) else None,
        )

    def terminal_record(self, event: TerminalEvent, now: float, key: str = "") -> tuple[str, dict[str, object]]:
        """The one log line of a request, and its facts by name. It has none of the request's content.

        `key` is the name of its API key, if it has one.
        """
        timing = self.timing(now)
        counts = {"prompt": self.prompt_tokens, "completion": self.completion_tokens, "cached": self.cached_tokens}
        times = {"queued": timing.queued, "ttft": timing.ttft, "total": timing.total}
        times = {name: round(seconds, 4) for name, seconds in times.items() if seconds is not None}
        reason = event.reason if isinstance(event, Finished) else "error"
        words = [
            self.request.id,
            reason,
            *(f"{name}={count}" for name, count in counts.items()),
            *(f"{name}={seconds:.4f}" for name, seconds in times.items()),
        ]
        facts: dict[str, object] = {"request": self.request.id, "request_id": self.request.name, "reason": reason}
        if key:
            words.append(f"key={key}")
            facts["key"] = key
        if isinstance(event, Failed):
            words.append(event.code)
            facts["error"] = event.code
        return " ".join(words), {**facts, **counts, **times}


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
