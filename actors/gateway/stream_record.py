"""The gateway's record of one accepted, unfinished request: its outbox, credit, counts and times."""

from ...protocol.events import Failed, Finished, FinishReason, TerminalEvent, Timing, Usage
from ...protocol.requests import ChatPrompt, Generate
from .credit import CreditLine
from .history import History
from .outbox import Outbox


class StreamRecord:
    """Written only by the gateway and its TokenTimes; times are seconds of the front's clock."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "credit", "first_token_at", "last_token_at", "outbox", "prompt_tokens",
        "reasons", "request", "started_at", "tokenized_at", "wall_clock",
    )  # fmt: skip

    def __init__(self, request: Generate, outbox: Outbox, credit: CreditLine, wall_clock: float) -> None:
        self.request = request
        self.wall_clock = wall_clock  # Unix time minus the front's clock
        self.outbox = outbox
        self.credit = credit
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
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
            model=request.model,
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
            finished=now,
            reason=reason,
            reasons=tuple(self.reasons),
            error=event.code if isinstance(event, Failed) else None,
        )

    def terminal_record(self, event: TerminalEvent, now: float) -> str:
        """The one log line of a request. It has none of the request's content."""
        timing = self.timing(now)
        times = {"queued": timing.queued, "ttft": timing.ttft, "total": timing.total}
        words = [
            self.request.id,
            event.reason if isinstance(event, Finished) else "error",
            f"prompt={self.prompt_tokens} completion={self.completion_tokens} cached={self.cached_tokens}",
            *(f"{name}={seconds:.4f}" for name, seconds in times.items() if seconds is not None),
        ]
        if isinstance(event, Failed):
            words.append(event.code)
        return " ".join(words)
