"""How a request can end, seen from its client. Pure."""

from typing import Literal, get_args

Outcome = Literal[
    "ok",
    "cancelled",  # by the client as the mix asks, or because the run was ended early
    "refused",  # 429 or 503: the server is full
    "client_error",  # any other 4xx
    "server_error",  # any other 5xx
    "stream_error",  # an error event, after a good status
    "unterminated",  # the body ended correctly for HTTP, but without finish_reason or [DONE]
    "reset",  # the connection ended within an answer
    "connect",  # no connection
    "malformed",  # not HTTP, not an event stream, or not JSON
    "stalled",  # nothing for --stall seconds after the first token
    "timeout",  # not complete after --timeout seconds
    "unfinished",  # still running when the run's grace period ended
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
BY_CHOICE: frozenset[Outcome] = frozenset({"ok", "cancelled"})
GIVEN_UP: frozenset[Outcome] = frozenset({"stalled", "timeout", "unfinished"})  # the answer might have come later
FAILURES: tuple[Outcome, ...] = tuple(outcome for outcome in OUTCOMES if outcome not in BY_CHOICE)


class Fault(Exception):
    """A request did not end as its client wanted."""

    def __init__(self, outcome: Outcome, detail: str, status: int | None = None) -> None:
        super().__init__(detail)
        self.outcome: Outcome = outcome
        self.detail = detail
        self.status = status


def outcome_of_status(status: int) -> Outcome:
    if status in (429, 503):
        return "refused"
    return "client_error" if 400 <= status < 500 else "server_error"
