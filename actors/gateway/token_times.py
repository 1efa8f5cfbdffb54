"""When a stream's tokens come, for the server's histograms: the time to its first one, and from token to token.

The streams of a step nearly all waited equally long, so what is the same for one after the other is observed once.
"""

from .accounts import Accounts
from .stream_record import StreamRecord


class TokenTimes:
    """Times are seconds of the front's clock. `settle` must follow when a step's last tokens were noted."""

    __slots__ = ("_accounts", "_gap", "_gaps")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._gap = 0.0
        self._gaps = 0  # so many streams had it, and were not observed yet

    def note(self, live: StreamRecord, index: int, tokens: int, now: float) -> None:
        """So many tokens of a choice, at least one, have come together."""
        times = live.last_token_at
        if last := times[index]:
            gap = (now - last) / tokens
            if gap != self._gap:
                self.settle()
                self._gap = gap
            self._gaps += 1
        elif live.first_token_at is None:
            live.first_token_at = now
            self._accounts.first_token.observe(now - live.request.arrival_time)
        times[index] = now
        live.completion_tokens += tokens

    def settle(self) -> None:
        """Observe what was only counted."""
        if self._gaps:
            self._accounts.between_tokens.observe(self._gap, self._gaps)
            self._gaps = 0
