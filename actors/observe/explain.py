"""Why a request is where it is, in numbers: from the planner's own predicates and the request's times. Pure.

`standing` reads the scheduler's queues after its last plan; `explain` adds what the gateway knows. Nothing is computed
before somebody asks.
"""

from collections import Counter
from typing import Final, NamedTuple

from msgspec import structs

from ...protocol.explanation import (
    BlockedOn,
    Explanation,
    Holders,
    Obstacle,
    PrefillProgress,
    Share,
    Standing,
    State,
    TenantShare,
    Timeline,
)
from ..gateway.history import History
from ..scheduler.blocks import BlockPool
from ..scheduler.policies import Policy
from ..scheduler.queues import Queues
from ..scheduler.sequence import LiveRequest, Sequence
from ..scheduler.start_rate import StartRate
from ..scheduler.step_plan import Blocked, Limits, Shortage

_FOREMOST: Final[tuple[State, ...]] = ("decode", "prefill", "parked", "waiting")
# What ends by itself as others start and finish. A reader, a prefix or a worker comes when it comes.
_TURN: Final[frozenset[Obstacle]] = frozenset({"order", "share", "step", "rows", "blocks", "budget"})


class Waits(NamedTuple):
    """What the last plan said of those that it left out. `limits` is None while no worker is ready.

    Sequences with numbers above `newest` came after it.
    """

    blocked: dict[int, Blocked]
    shortage: Shortage | None
    limits: Limits | None
    policy: Policy
    newest: int


def standing(live: LiveRequest, queues: Queues, pool: BlockPool, waits: Waits, rate: StartRate, now: float) -> Standing:
    """Where a request's unfinished choices are."""
    states: dict[Sequence, State] = {sequence: state_of(sequence) for sequence in live.choices.values()}
    sequence = min(states, key=lambda one: (_FOREMOST.index(states[one]), one.index))
    state = states[sequence]
    blocked_on = _blocked_on(sequence, state, queues, pool, waits)
    position, eta = None, None
    if state == "waiting":
        position = waits.policy.position(queues, sequence)
        if blocked_on is not None and blocked_on.kind in _TURN:
            eta = rate.seconds_until(position, now)
    return Standing(
        state=state,
        choices=dict(Counter(states.values())),
        position=position,
        blocked_on=blocked_on,
        prefill=PrefillProgress(computed=sequence.computed, total=sequence.read) if state == "prefill" else None,
        eta_ms=None if eta is None else round(eta * 1000),
    )


def state_of(sequence: Sequence) -> State:
    """A sequence that is computed anew after a preemption is in its prefill again."""
    if sequence.place == "running":
        decoding = sequence.remaining <= 1 and (sequence.generated or sequence.unread)
        return "decode" if decoding else "prefill"
    return "parked" if sequence.place == "parked" else "waiting"


def obstacle(sequence: Sequence, queues: Queues, waits: Waits) -> Obstacle:
    """What kept a waiting sequence out of the last step: one answer for explanations, the dashboard and the metrics."""
    if waits.limits is None:
        return "worker"
    reason, shortage = waits.blocked.get(sequence.id), waits.shortage
    if shortage is None:
        return reason or "step"
    first = shortage.sequence
    if sequence is first:
        return shortage.kind
    if reason:
        return reason
    if sequence.id > waits.newest:
        return "step"
    overtaken = queues.tenants.of(first) is not queues.tenants.of(sequence) and sequence.order < first.order
    return "share" if overtaken and queues.tenants.several else "order"


def _blocked_on(sequence: Sequence, state: State, queues: Queues, pool: BlockPool, waits: Waits) -> BlockedOn | None:
    limits = waits.limits
    if limits is None:
        return BlockedOn(kind="worker")
    reason = waits.blocked.get(sequence.id)
    if reason == "credit" or (state == "parked" and sequence.live.credit <= 0):
        return BlockedOn(kind="credit", unit="tokens", need=1, free=max(sequence.live.credit, 0))
    tenant, shortage = sequence.live.generate.tenant, waits.shortage
    if state == "parked":
        return _share(sequence, None, _short("rows", "rows", 1, 0, tenant, queues, pool, limits), queues)
    if state != "waiting":
        # One that runs may still have got no chunk of the last step.
        need = 1 if reason == "blocks" else sequence.remaining
        return _short(reason, reason, need, 0, tenant, queues, pool, limits) if reason and need > 0 else None
    kind = obstacle(sequence, queues, waits)
    if shortage is None or (sequence is not shortage.sequence and kind in ("step", reason)):
        return BlockedOn(kind=kind)
    if kind != "share":
        return _short(kind, shortage.kind, shortage.need, shortage.free, tenant, queues, pool, limits)
    short = _short("order", shortage.kind, shortage.need, shortage.free, tenant, queues, pool, limits)
    return _share(sequence, shortage.sequence, short, queues)


def _share(sequence: Sequence, first: Sequence | None, short: BlockedOn, queues: Queues) -> BlockedOn:
    """It is `short` for its tenant's share alone. `first`: whose turn it is; None: the least served tenant's."""
    tenants = queues.tenants
    if not tenants.several:
        return short
    mine = tenants.of(sequence)
    others = [tenants.of(first)] if first else [tenant for tenant in tenants.active.values() if tenant is not mine]
    ahead = max(mine.served - min(other.served for other in others), 0)
    if first is None and not ahead:
        return short  # parked for its own reader, and not served more than others
    share = Share(ahead=ahead, rows=mine.rows, keys=len(tenants.active))
    return structs.replace(short, kind="share", first=short.first or short.kind, share=share)


def _short(
    kind: Obstacle, wanted: Blocked, need: int, free: int, tenant: str, queues: Queues, pool: BlockPool, limits: Limits
) -> BlockedOn:
    first = wanted if kind == "order" else None
    if wanted == "budget":
        return BlockedOn(kind=kind, first=first, unit="tokens", need=need, free=free, total=limits.max_step_tokens)
    holding = queues.running if wanted == "rows" else [*queues.running, *queues.parked]
    holders = Holders(
        running=len(queues.running),
        parked=len(holding) - len(queues.running),
        yours=sum(1 for other in holding if other.live.generate.tenant == tenant),
    )
    if wanted == "rows":
        rows = limits.rows
        return BlockedOn(kind=kind, first=first, unit="rows", need=need, free=free, total=rows, holders=holders)
    return BlockedOn(kind=kind, first=first, unit="blocks", need=need, free=free, total=pool.total, holders=holders)


def explain(history: History, standing: Standing | None, share: TenantShare) -> Explanation:
    """`standing` is None where the scheduler does not hold it."""
    state = standing.state if standing else _state_outside(history)
    return Explanation(
        id=history.id,
        request_id=history.name,
        state=state,
        choices=standing.choices if standing else {},
        position=standing.position if standing else None,
        blocked_on=standing.blocked_on if standing else None,
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
    """Of a request that the scheduler does not hold: it has not come there yet, or its last text is on its way."""
    if history.finished is not None:
        return "finished"
    if history.first_token is not None:
        return "decode"
    if history.started is not None:
        return "prefill"
    return "tokenizing" if history.tokenized is None else "waiting"


def _after(moment: float | None, history: History) -> float | None:
    return None if moment is None else round(moment - history.arrival, 6)
