"""What the gateway keeps of one accepted, unfinished request: its outbox, its credit, its counts and its times."""

from ..protocol.events import Failed, Finished, TerminalEvent, Timing, Usage
from ..protocol.requests import Generate
from .credit import CreditLine
from .outbox import Outbox


class StreamRecord:
    """Written by the gateway alone; times are seconds of the front's clock."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "credit", "first_token_at", "last_token_at", "outbox", "prompt_tokens",
        "request", "started_at",
    )  # fmt: skip

    def __init__(self, request: Generate, outbox: Outbox, credit: CreditLine) -> None:
        self.request = request
        self.outbox = outbox
        self.credit = credit
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: dict[int, float] = {}  # by choice

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

    def terminal_record(self, event: TerminalEvent, now: float) -> str:
        """The one line that the log has of every request. Nothing of its content is in it."""
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
