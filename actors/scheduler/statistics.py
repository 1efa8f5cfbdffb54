"""The scheduler's statistics: one frozen Struct, used by /metrics and /internal/ledger."""

from msgspec import Struct

from .blocks import BlockCounts


class SchedulerTotals(Struct, kw_only=True):
    """Counters that only grow, for the life of the front."""

    steps: int = 0  # answered
    model_seconds: float = 0.0  # in the forward pass
    plan_seconds: float = 0.0  # in the scheduler, including messages
    prompt_tokens: int = 0  # of choices, counted when they first ran
    prefill_tokens: int = 0  # planned: uncached prompt tokens, and recomputed ones
    generated_tokens: int = 0  # kept ones: including stop tokens, without those sampled past the end
    wasted_tokens: int = 0  # sampled past the end of their sequence, by steps in flight
    prefix_query_tokens: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hit_tokens: int = 0
    preemptions: int = 0  # sequences that lost their KV, including by lost workers
    displaced: int = 0  # sequences parked because another tenant's took their row; they keep their KV
    evictions: int = 0  # cached blocks that were reused for other content
    worker_losses: int = 0
    device_allocations: int = 0  # by the present worker since it was ready; must stay 0
    device_compilations: int = 0


class SchedulerStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot; `waiting_by_reason` counts waiting sequences by the planner's reason."""

    worker_ready: bool
    requests: int
    running: int
    parked: int
    waiting: int
    waiting_by_reason: dict[str, int]
    steps_in_flight: int
    blocks: BlockCounts
    totals: SchedulerTotals
