"""Where a request is, what keeps it waiting and how soon it may start. Pure.

The answers use the numbers that the planner compared in its last plan. They are computed only on request.
"""

from collections import Counter, deque
from collections.abc import Container, Mapping
from typing import Final, Literal, NamedTuple

from msgspec import structs

from ...protocol.explanation import BlockedOn, FairShare, Holders, Obstacle, PrefillProgress, Standing, State
from .blocks import BlockPool
from .fair_share import position_of
from .queues import Queues, TenantQueue
from .sequence import LiveRequest, Sequence
from .step_plan import Shortage, StepLimits

_FOREMOST: Final[tuple[State, ...]] = ("decode", "prefill", "parked", "waiting")
# These end as others start and finish. A slow reader, a shared prefix or a dead worker may take any time.
_TURN: Final[frozenset[Obstacle]] = frozenset({"order", "share", "step", "rows", "blocks", "budget"})
_PLANS: Final = 16  # the rate covers the last plans that started sequences: few, so a new load shows soon
_OLD: Final = 60.0  # seconds without a start: that queue may have been cancelled long ago
_ENOUGH: Final = 5  # four intervals; with fewer, one long answer made the estimate three times too long


class StartRate:
    """How fast waiting sequences start, measured only while there is a queue.

    Without a queue, starts follow the clients' pace and say nothing about the engine. So an empty queue resets the
    measurement, and the estimate is unknown until a few plans have started sequences.
    """

    def __init__(self) -> None:
        self._starts: deque[tuple[float, int]] = deque(maxlen=_PLANS)

    def note(self, started: int, left: int, now: float) -> None:
        """A plan gave `started` sequences their first step, and `left` still wait."""
        if left:
            self._starts.append((now, started))
        else:
            self._starts.clear()

    def seconds_until(self, position: int, now: float) -> float | None:
        """Time until the one at `position` (1 is next) starts. The time since the last start counts, so a jam shows."""
        if len(self._starts) < _ENOUGH or now - self._starts[-1][0] > _OLD:
            return None
        first = self._starts[0][0]
        started = sum(count for _, count in self._starts) - self._starts[0][1]
        return position * (now - first) / started if now > first else None


def state_of(sequence: Sequence) -> State:
    """The state of a choice. One that is computed again after a preemption is in prefill again."""
    if sequence.place == "running":
        known = sequence.remaining <= 1 or sequence.computed >= sequence.prompt_tokens
        decoding = known and (sequence.generated or sequence.unread)
        return "decode" if decoding else "prefill"
    return "parked" if sequence.place == "parked" else "waiting"


class WaitReasons(NamedTuple):
    """Why the last plan left sequences out, and the tables it looked at. `limits` is None while no worker is ready."""

    queues: Queues
    pool: BlockPool
    limits: StepLimits | None
    blocked: Mapping[int, Obstacle]
    full: Container[TenantQueue]  # at their limit of blocks: what of theirs waits has no turn
    shortage: Shortage | None
    newest: int  # sequences with higher numbers arrived after the plan

    def standing(self, live: LiveRequest, rate: StartRate, now: float) -> Standing:
        """Where a request's unfinished choices are; the numbers are those of the most advanced one."""
        states: dict[Sequence, State] = {sequence: state_of(sequence) for sequence in live.choices.values()}
        sequence = min(states, key=lambda one: (_FOREMOST.index(states[one]), one.index))
        state = states[sequence]
        blocked_on = self._blocked_on(sequence, state)
        position, eta = None, None
        if state == "waiting":
            position = position_of(self.queues, sequence)
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

    def obstacle(self, sequence: Sequence) -> Obstacle:
        """What kept a waiting sequence out of the last step. Explanations, dashboard and metrics all use this."""
        if self.limits is None:
            return "worker"
        reason, shortage = self._reason(sequence), self.shortage
        if shortage is None:
            return reason or "step"
        first = shortage.sequence
        if sequence is first:
            return shortage.kind
        if reason:
            return reason
        if sequence.id > self.newest:
            return "step"
        queues = self.queues
        another = queues.several_tenants and queues.tenant_of(first) is not queues.tenant_of(sequence)
        earlier = sequence.order[1:] < first.order[1:]  # without the priorities, which count within a tenant only
        return "share" if another and earlier else "order"

    def _reason(self, sequence: Sequence) -> Obstacle | None:
        reason = self.blocked.get(sequence.id)
        if reason is None and sequence.place == "waiting" and self.queues.tenant_of(sequence) in self.full:
            return sequence.live.obstacle or "key"  # the plan did not ask it
        return reason

    def _blocked_on(self, sequence: Sequence, state: State) -> BlockedOn | None:
        if self.limits is None:
            return BlockedOn(kind="worker")
        reason, shortage = self._reason(sequence), self.shortage
        if reason == "credit" or (state == "parked" and sequence.live.credit <= 0):
            return BlockedOn(kind="credit", unit="tokens", need=1, free=max(sequence.live.credit, 0))
        if reason in ("suspect", "key"):
            return BlockedOn(kind=reason)
        if state == "parked":
            return self._share(sequence, None, self._numbers(sequence, "rows", "rows", 1, 0))
        if state != "waiting":  # a running one may still have got no chunk of the last step
            need = 1 if reason == "blocks" else sequence.remaining
            return self._numbers(sequence, reason, reason, need, 0) if reason and need > 0 else None
        kind = self.obstacle(sequence)
        if shortage is None or (sequence is not shortage.sequence and kind in ("step", reason)):
            return BlockedOn(kind=kind)
        _, wanted, need, free = shortage
        if kind != "share":
            return self._numbers(sequence, kind, wanted, need, free)
        return self._share(sequence, shortage.sequence, self._numbers(sequence, "order", wanted, need, free))

    def _share(self, sequence: Sequence, first: Sequence | None, short: BlockedOn) -> BlockedOn:
        """`short`, or its tenant's share if that is the reason. `first` has the turn; None: the least served tenant."""
        queues, mine = self.queues, self.queues.tenant_of(sequence)
        if not queues.several_tenants:
            return short
        others = [queues.tenant_of(first)] if first else [one for one in queues.tenants.values() if one is not mine]
        ahead = round(max(mine.served - min(other.served for other in others), 0))
        if first is None and not ahead:
            return short  # parked for its own reader, and not served more than others
        share = FairShare(ahead=ahead, rows=mine.rows, keys=len(queues.tenants))
        return structs.replace(short, kind="share", first=short.first or short.kind, share=share)

    def _numbers(self, sequence: Sequence, kind: Obstacle, wanted: Obstacle, need: int, free: int) -> BlockedOn:
        """What is needed, free and held. `kind` is "order" if a sequence before this one needs it."""
        assert self.limits is not None
        first = wanted if kind == "order" else None
        if wanted == "budget":
            total = self.limits.max_step_tokens
            return BlockedOn(kind=kind, first=first, unit="tokens", need=need, free=free, total=total)
        running, parked = self.queues.running, self.queues.parked if wanted != "rows" else []
        tenant = sequence.live.generate.tenant
        holders = Holders(
            running=len(running),
            parked=len(parked),
            yours=sum(1 for other in (*running, *parked) if other.live.generate.tenant == tenant),
        )
        total = self.limits.rows if wanted == "rows" else self.pool.total
        unit: Literal["rows", "blocks"] = "rows" if wanted == "rows" else "blocks"
        return BlockedOn(kind=kind, first=first, unit=unit, need=need, free=free, total=total, holders=holders)
