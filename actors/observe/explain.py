"""Explains a request from the scheduler's report about it and the gateway's history. Pure."""

from msgspec import structs

from ...protocol.explanation import Explanation, Standing, State, TenantShare, Timeline
from ..gateway.history import History


def explain(history: History, standing: Standing | None, share: TenantShare, worker: str = "") -> Explanation:
    """`standing` is None if the scheduler does not hold the request; `worker` says why no worker is ready."""
    blocked_on = standing.blocked_on if standing else None
    if blocked_on is not None and blocked_on.kind == "worker":
        blocked_on = structs.replace(blocked_on, reason=worker or None)
    state = standing.state if standing else _state_outside(history)
    return Explanation(
        id=history.id,
        request_id=history.name,
        state=state,
        choices=standing.choices if standing else {},
        position=standing.position if standing else None,
        blocked_on=blocked_on,
        prefill=standing.prefill if standing else None,
        eta_ms=standing.eta_ms if standing else None,
        tenant=share,
        usage=history.usage,
        timeline=Timeline(
            arrived=round(history.arrival + history.wall_clock, 6),
            tokenized=_after(history.tokenized, history),
            started=_after(history.started, history),
            first_token=_after(history.first_token, history),
            finished=_after(history.finished, history),
        ),
        finish_reason=history.reason,
        error=history.error,
    )


def _state_outside(history: History) -> State:
    """The state of a request outside the scheduler: before it got there, or with its last text on its way."""
    if history.finished is not None:
        return "finished"
    if history.first_token is not None:
        return "decode"
    if history.started is not None:
        return "prefill"
    if history.tokenized is not None:
        return "waiting"
    return "compiling" if history.compiling else "tokenizing"


def _after(moment: float | None, history: History) -> float | None:
    return None if moment is None else round(moment - history.arrival, 6)
