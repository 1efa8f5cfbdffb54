"""One request under way: what the transport measures while it runs, and its final record."""

from typing import Literal, Protocol

import trio

from ..client.ending import Outcome
from .record import Record
from .workload import ConversationPlan, PlannedTurn


class LoadRequest:
    """The transport's task: the body, the key, and how the client behaves."""

    __slots__ = ("body", "cancel_after", "keep_text", "key", "pieces_per_second")

    def __init__(
        self,
        body: bytes,
        key: str | None = None,
        *,
        cancel_after: int | None = None,
        pieces_per_second: float | None = None,
        keep_text: bool = False,
    ) -> None:
        self.body = body
        self.key = key
        self.cancel_after = cancel_after  # pieces
        self.pieces_per_second = pieces_per_second  # None: as fast as they arrive
        self.keep_text = keep_text  # the next turn needs it


class LoadExchange:
    """Times are trio's; `origin` is the start of the run. `arrivals` grows by one per piece of text."""

    __slots__ = (
        "arrivals", "cached_tokens", "counts", "detail", "finish", "head", "intended", "outcome", "output_tokens",
        "prompt_tokens", "reused", "scope", "sent", "started", "status", "texts", "why",
    )  # fmt: skip

    def __init__(self, intended: float, started: float) -> None:
        self.intended = intended
        self.started = started
        self.sent: float | None = None
        self.head: float | None = None
        self.arrivals: list[float] = []
        self.counts: list[int] | None = None
        self.texts: list[str] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finish: str | None = None
        self.reused = False
        self.status: int | None = None
        self.outcome: Outcome = "ok"
        self.detail = ""
        self.scope = trio.CancelScope()
        self.why: Literal["timeout", "stalled", "unfinished", "cancelled"] = "timeout"  # why a scope was cancelled

    def fail(self, outcome: Outcome, detail: str, status: int | None = None) -> None:
        self.outcome, self.detail = outcome, detail[:300]
        self.status = status if status is not None else self.status

    def record(
        self, plan: ConversationPlan, index: int, turn: PlannedTurn, *, origin: float, ended: float, warmup: float
    ) -> Record:
        told = self.output_tokens
        if told is None and self.counts is not None:
            told = sum(self.counts)
        intended = self.intended - origin
        return Record(
            conversation=plan.number,
            turn=index,
            phase="warm-up" if intended < warmup else "measured",
            tenant=plan.client.tenant.name,
            priority=plan.client.priority,
            behaviour=plan.client.behaviour,
            intended=intended,
            started=self.started - origin,
            sent=None if self.sent is None else self.sent - origin,
            head=None if self.head is None else self.head - origin,
            arrivals=[time - origin for time in self.arrivals],
            counts=self.counts,
            ended=ended - origin,
            prompt_tokens_asked=turn.prompt_tokens,
            output_tokens_asked=turn.output_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=told if told is not None else len(self.arrivals),
            output_tokens_told=told is not None,
            reused=self.reused,
            outcome=self.outcome,
            status=self.status,
            finish=self.finish,
            detail=self.detail,
        )


class Transport(Protocol):
    async def perform(self, ask: LoadRequest, exchange: LoadExchange) -> None:
        """Send the request and follow its answer to the end. Raises Fault; may be cancelled at any moment."""
        ...

    async def close(self) -> None: ...
