"""Token latencies for the server's histograms: the time to the first token, and between tokens.

Most streams of a step have waited equally long, so consecutive equal values are counted and observed once.
"""

from .accounts import Accounts
from .stream_record import StreamRecord


class TokenTimes:
    """Times are seconds of the front's clock. Call `settle` after a step's last tokens."""

    __slots__ = ("_accounts", "_gap", "_gaps")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._gap = 0.0
        self._gaps = 0  # how many streams had this gap and are not observed yet

    def note(self, live: StreamRecord, index: int, tokens: int, now: float) -> None:
        """Note that `tokens` tokens of a choice, at least one, arrived together."""
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
        """Observe what was counted."""
        if self._gaps:
            self._accounts.between_tokens.observe(self._gap, self._gaps)
            self._gaps = 0
