"""What the scheduler tells about itself: one frozen Struct behind /metrics and /internal/ledger."""

from msgspec import Struct

from .blocks import BlockCounts


class SchedulerTotals(Struct, kw_only=True):
    """Counters that only grow, for the life of the front."""

    steps: int = 0  # answered
    model_seconds: float = 0.0  # in the forward pass
    plan_seconds: float = 0.0  # the scheduler's own, messages included
    prompt_tokens: int = 0  # of choices when they first ran
    prefill_tokens: int = 0  # planned: prompts without what was cached, and what is computed again
    generated_tokens: int = 0  # kept: stop tokens yes, what was sampled behind the end no
    wasted_tokens: int = 0  # sampled behind the end of their sequence, by steps in flight
    prefix_query_tokens: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hit_tokens: int = 0
    preemptions: int = 0  # sequences that lost their KV, lost workers included
    displaced: int = 0  # sequences that gave their row to another tenant's and kept their KV
    evictions: int = 0  # blocks whose cached content made room
    worker_losses: int = 0
    device_allocations: int = 0  # by the present worker since it was ready; promised to stay 0
    device_compilations: int = 0


class SchedulerStatistics(Struct, frozen=True, kw_only=True):
    """A moment's view; `waiting_by_reason` counts sequences by the planner's predicate that kept them."""

    worker_ready: bool
    requests: int
    running: int
    parked: int
    waiting: int
    waiting_by_reason: dict[str, int]
    steps_in_flight: int
    blocks: BlockCounts
    totals: SchedulerTotals
