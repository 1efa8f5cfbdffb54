"""The engine as the dashboard shows it, taken from the scheduler's state when somebody asks. Pure: changes nothing.

Costs what MAX_ROWS and MAX_CELLS allow, not what is live: measured with 64 running sequences of 21 blocks each, 0.8 ms.
Names of requests are cut and tenants numbered here: what a view holds may be shown to whoever may see the metrics.
"""

from collections.abc import Callable
from itertools import chain, islice

from ..protocol.engine_view import MAX_ROWS, BatchRow, BlockMap, HistogramCounts, QueueRow, RowState, Totals
from .accounts import Accounts
from .block_map import block_map
from .histogram import Histogram
from .scheduler_state import SchedulerState
from .scheduler_statistics import SchedulerTotals
from .sequence import Sequence
from .sequence_kv import blocks_short, cached_blocks
from .worker_status import WorkerStatus

TenantNumber = Callable[[str], int]

_SHORT_ID = 12  # characters: the counter of an id, or the end of one that has none


class TenantNumbers:
    """Numbers for tenants, in the order in which they are first shown: as many as there are keys. No tenant is 0."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def __call__(self, tenant: str) -> int:
        return self._numbers.setdefault(tenant, len(self._numbers))


def request_number(sequence: Sequence) -> int:
    """The same for all choices of a request: the id of the first, whether it has ended or not."""
    return sequence.id - sequence.index


def batch_rows(state: SchedulerState, now: float, tenant: TenantNumber, limit: int = MAX_ROWS) -> list[BatchRow]:
    """Running sequences and then parked ones, each in order."""
    queues = state.table.queues
    return [_batch_row(s, state, now, tenant) for s in islice(chain(queues.running, queues.parked), limit)]


def _batch_row(sequence: Sequence, state: SchedulerState, now: float, tenant: TenantNumber) -> BatchRow:
    generate = sequence.live.generate
    row_state: RowState = "decode"
    if sequence.place == "parked":
        row_state = "parked"
    elif sequence.remaining > 1:
        row_state = "recompute" if sequence.generated else "prefill"
    return BatchRow(
        sequence=sequence.id,
        request=request_number(sequence),
        id=_short(generate.id),
        choice=sequence.index,
        tenant=tenant(generate.tenant),
        priority=generate.priority,
        state=row_state,
        prompt=len(sequence.prompt.tokens),
        cached=sequence.cached_tokens,
        computed=sequence.computed,
        generated=len(sequence.generated),
        limit=sequence.max_total,
        blocks=len(sequence.blocks),
        seconds=_age(generate.arrival_time, now),
        blocked=state.blocked.get(sequence.id, ""),
    )


def queue_rows(state: SchedulerState, now: float, tenant: TenantNumber, limit: int = MAX_ROWS) -> list[QueueRow]:
    """Waiting sequences in the planner's order."""
    return [_queue_row(sequence, state, now, tenant) for sequence in state.queue()[:limit]]


def _queue_row(sequence: Sequence, state: SchedulerState, now: float, tenant: TenantNumber) -> QueueRow:
    generate, pool = sequence.live.generate, state.table.pool
    blocked = state.blocked.get(sequence.id, "order") if state.worker_ready else "worker"
    wanted = available = 0
    if blocked == "blocks":  # one sequence of a plan at most: the planner stops there
        wanted, available = blocks_short(sequence, cached_blocks(sequence, pool), state.table.queues, pool)
    return QueueRow(
        sequence=sequence.id,
        request=request_number(sequence),
        id=_short(generate.id),
        choice=sequence.index,
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
    """The KV blocks by request."""
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
