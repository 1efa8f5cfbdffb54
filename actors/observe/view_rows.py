"""The dashboard's tables, made from the scheduler's state on request. Pure: changes nothing.

Reasons for waiting are those of the last plan, in the words and numbers of an explanation of the same request.

MAX_ROWS and MAX_CELLS bound the cost: 0.8 ms measured with 64 running sequences of 21 blocks each. Waiting sequences
are ordered and counted by reason: another 1 ms for 1,000 sequences of 20 tenants.
Request names are shortened and tenants numbered here: everybody who may see the metrics may see a view.
"""

from collections.abc import Callable
from itertools import chain, islice

from ...protocol.engine_view import MAX_ROWS, BatchRow, BlockMap, HistogramCounts, QueueRow, RowState, Totals
from ...protocol.reports import SchedulerTotals
from ..gateway.accounts import Accounts
from ..histogram import Histogram
from ..scheduler.fair_share import lined_up
from ..scheduler.sequence import Sequence
from ..scheduler.standing import WaitReasons, state_of
from ..scheduler.state import SchedulerState
from ..supervisor.worker_status import WorkerStatus
from .block_map import block_map

TenantNumber = Callable[[str], int]
ProcessOf = Callable[[str], str]  # the web process that holds a request, by the request's id

_SHORT_ID = 12  # characters: the counter of an id, or the end of an id without one


class TenantNumbers:
    """Numbers tenants in the order in which they are first shown: as many as there are keys. No tenant is 0."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def __call__(self, tenant: str) -> int:
        return self._numbers.setdefault(tenant, len(self._numbers))


def request_number(sequence: Sequence) -> int:
    """The same for all choices of a request: the id of the first one, even if that has ended."""
    return sequence.id - sequence.index


def only_process(id: str) -> str:
    """With one web process, its name is left out."""
    return ""


def batch_rows(
    state: SchedulerState, now: float, tenant: TenantNumber, process: ProcessOf = only_process
) -> list[BatchRow]:
    """Running, then parked sequences, each in order; at most MAX_ROWS."""
    queues, waits = state.table.queues, state.waits
    shown = islice(chain(queues.running, queues.parked), MAX_ROWS)
    return [_batch_row(sequence, waits, now, tenant, process) for sequence in shown]


def _batch_row(
    sequence: Sequence, waits: WaitReasons, now: float, tenant: TenantNumber, process: ProcessOf
) -> BatchRow:
    generate = sequence.live.generate
    return BatchRow(
        sequence=sequence.id,
        request=request_number(sequence),
        id=_short(generate.id),
        choice=sequence.index,
        process=process(generate.id),
        tenant=tenant(generate.tenant),
        priority=generate.priority,
        state=_row_state(sequence),
        prompt=len(sequence.prompt.tokens),
        cached=sequence.cached_tokens,
        computed=sequence.computed,
        generated=len(sequence.generated),
        limit=sequence.max_total,
        blocks=len(sequence.blocks),
        seconds=_age(generate.arrival_time, now),
        blocked=waits.blocked.get(sequence.id, ""),
    )


def _row_state(sequence: Sequence) -> RowState:
    match state_of(sequence):
        case "parked":
            return "parked"
        case "prefill":
            return "recompute" if sequence.generated else "prefill"
        case _:
            return "decode"


def queue_rows(
    state: SchedulerState, now: float, tenant: TenantNumber, process: ProcessOf = only_process
) -> list[QueueRow]:
    """Waiting sequences in the planner's order; at most MAX_ROWS."""
    return [_queue_row(one, state, now, tenant, process) for one in lined_up(state.table.queues)[:MAX_ROWS]]


def _queue_row(
    sequence: Sequence, state: SchedulerState, now: float, tenant: TenantNumber, process: ProcessOf
) -> QueueRow:
    waits = state.waits
    generate, shortage = sequence.live.generate, waits.shortage
    blocked = waits.obstacle(sequence)
    wanted = available = 0
    if blocked == "blocks" and shortage is not None:  # at most one sequence of a plan: the planner stops there
        wanted, available = shortage.need, shortage.free
    return QueueRow(
        sequence=sequence.id,
        request=request_number(sequence),
        id=_short(generate.id),
        choice=sequence.index,
        process=process(generate.id),
        tenant=tenant(generate.tenant),
        priority=generate.priority,
        prompt=len(sequence.prompt.tokens),
        generated=len(sequence.generated),
        seconds=_age(generate.arrival_time, now),
        blocked=blocked,
        blocks_wanted=wanted,
        blocks_available=available,
        tokens_behind=max(0, 1 - sequence.live.credit) if blocked == "credit" else 0,
    )


def owned_map(state: SchedulerState) -> BlockMap:
    """The map of KV blocks by request."""
    holders = chain(state.table.queues.running, state.table.queues.parked)
    return block_map(state.table.pool, [(request_number(sequence), sequence.blocks) for sequence in holders])


def totals(scheduler: SchedulerTotals, accounts: Accounts, status: WorkerStatus) -> Totals:
    return Totals(
        steps=scheduler.steps,
        prefill_tokens=scheduler.prefill_tokens,
        generated_tokens=scheduler.generated_tokens,
        preemptions=scheduler.preemptions,
        evictions=scheduler.evictions,
        prefix_query_tokens=scheduler.prefix_query_tokens,
        prefix_hit_tokens=scheduler.prefix_hit_tokens,
        model_seconds=scheduler.model_seconds,
        worker_seconds=status.step_time.sum,
        link_seconds=status.link_seconds,
        plan_seconds=scheduler.plan_seconds,
        text_seconds=accounts.text_seconds,
        accepted=accounts.accepted,
        finished=dict(accounts.finished),
        refused=dict(accounts.refused),
    )


def histogram_counts(histogram: Histogram) -> HistogramCounts:
    return HistogramCounts(bounds=histogram.bounds, counts=list(histogram.counts), sum=histogram.sum)


def _short(id: str) -> str:
    return id.rpartition("-")[2][-_SHORT_ID:]


def _age(arrival: float, now: float) -> float:
    return round(max(0.0, now - arrival), 3)
