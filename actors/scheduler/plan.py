"""What the next step computes. No phases: a sequence has `computed` and `total` tokens, a step spends one token budget.

Running sequences come first, in order, then the waiting ones that may join. A decoding sequence always gets the one
token it needs. Prompts share what is left, so a long prompt never delays a running stream. Choices of one prompt share
its full blocks and copy the last one. Continuous batching, chunked prefill, prefix reuse and preemption by recompute
all follow. Pure: the same sequences and blocks give the same plan.
"""

from ...protocol.explanation import Obstacle
from . import fair_share
from .blocks import BlockPool, blocks_for
from .prefix_keys import Key, SharedPrompt
from .queues import Queues
from .sequence import Sequence
from .sharing import Sharing
from .step_plan import EVERYBODY, Shortage, StepLimits, StepPlan, StepTurn


def plan_step(
    queues: Queues,
    pool: BlockPool,
    limits: StepLimits,
    turn: StepTurn = EVERYBODY,
    sharing: Sharing | None = None,
) -> StepPlan:
    """Plan one step: give chunks to sequences, move them between the queues, take and release blocks.

    With `sharing` the step may be one tenant's alone.
    """
    plan = StepPlan(queues, pool, limits, turn)
    park(plan)
    resume_parked(plan)
    joining = Joining(plan)
    joining.make_way()
    favoured = sharing.favoured(queues, limits.max_step_tokens, pool.available) if sharing else []
    served = favoured or queues.running
    remaining = [sequence.remaining for sequence in served]
    plan.budget = prefill_budget = limits.max_step_tokens - remaining.count(1)
    # If every sequence gets what it needs, ranks would only reorder the worker's rows.
    prompts = [count for count in remaining if count > 1]
    blocks = len(remaining) + sum(blocks_for(min(count, plan.budget)) for count in prompts)
    serve(plan, fair_share.by_rank(queues, served) if len(prompts) > 1 or pool.available < blocks else served)
    if not favoured:
        joining.admit()
    for sequence in plan.planned.values():
        sequence.publish_blocks(pool)  # later steps may read these blocks: steps run in order
    plan.release_sources()
    plan.prefill_tokens = prefill_budget - plan.budget
    return plan


def park(plan: StepPlan) -> None:
    """Running sequences whose reader is behind, that wait for other beams, or that may not run now, give up their row
    to those that look for one."""
    for sequence in tuple(plan.queues.running):
        if not plan.turn.may_run(sequence):
            plan.blocked[sequence.id] = "suspect"
            plan.queues.move(sequence, "parked")
        elif sequence.stalled:
            plan.queues.move(sequence, "parked")


def resume_parked(plan: StepPlan) -> None:
    """Parked sequences whose reader caught up get a row again. They hold blocks, so they go before waiting ones."""
    for sequence in tuple(fair_share.by_rank(plan.queues, plan.queues.parked)):
        if len(plan.queues.running) == plan.limits.rows:
            return
        if sequence.live.credit > 0 and not sequence.waits_for_beams and plan.turn.may_run(sequence):
            plan.queues.move(sequence, "running")


def serve(plan: StepPlan, running: list[Sequence]) -> None:
    """Give every running sequence a chunk, as far as budget and blocks reach."""
    for sequence in tuple(running):
        remaining = sequence.remaining
        if remaining <= 0 or sequence.place != "running":
            continue  # its last token is not read yet, or this loop has preempted it
        if sequence.live.credit <= 0:
            plan.queues.move(sequence, "parked")  # another choice of its request used the last of their credit
            continue
        if remaining > 1 and plan.budget < sequence.least:
            plan.blocked[sequence.id] = "budget"
            continue
        count = plan.reserve(sequence, 1 if remaining == 1 else min(remaining, plan.budget))
        if count <= 0:
            plan.blocked.setdefault(sequence.id, "blocks")
            continue
        if remaining > 1:
            plan.budget -= count
        plan.add_chunk(sequence, count)


class Joining:
    """Gives rows to waiting sequences, in turn. Those that share a prefix wait until the first has computed it."""

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self._queues = plan.queues
        self._pool = plan.pool
        # The first sequence that computes a block others may share, or a prompt whose last block they may copy.
        self._computing: dict[Key | SharedPrompt, Sequence] = {}
        if self._queues.waiting:  # those that share a prefix wait for it instead of computing it again
            for sequence in self._queues.running:  # parked ones with credit already got a row, if one was free
                if sequence.prompt.choices > 1 and sequence.computed >= sequence.prompt_tokens:
                    plan.prompt_sources.setdefault(sequence.prompt, sequence)
            for sequence in self._queues.running:
                self._note_prefix(sequence)

    def make_way(self) -> None:
        """Join those that go before running sequences, replacing some of these if necessary."""
        plan, queues = self._plan, self._queues
        while queues.running and (first := self._first_ready()):
            if not fair_share.goes_first(queues, first):
                return
            cached = self._cached(first)
            missing = self._missing(first, cached) - self._parked_blocks()
            if len(queues.running) < plan.limits.rows and missing <= 0 and not self._lacks_own_blocks(first):
                self._join(first, cached)
                continue
            place, leaving = fair_share.makes_room(queues, first, missing)
            if not leaving:
                return
            for sequence in leaving:
                if place == "parked":
                    plan.displace(sequence)
                else:
                    plan.preempt(sequence)

    def _first_ready(self) -> Sequence | None:
        return next((one for one in fair_share.turns(self._queues, self._plan.full) if not self._not_ready(one)), None)

    def admit(self) -> None:
        """Join the others in turn, up to the first that does not fit: nothing overtakes a large sequence."""
        plan = self._plan
        for sequence in fair_share.turns(self._queues, plan.full):
            if reason := self._not_ready(sequence):
                plan.blocked[sequence.id] = reason
                continue
            if self._lacks_own_blocks(sequence):  # less urgent ones hold them: `make_way` takes them in a later step
                plan.blocked[sequence.id] = "key"
                plan.full.add(self._queues.tenant_of(sequence))
                continue
            cached = self._cached(sequence)
            if shortage := self._no_place(sequence, cached):
                plan.blocked[sequence.id] = shortage.kind
                plan.shortage = shortage
                return
            self._join(sequence, cached)
            count = plan.reserve(sequence, min(sequence.remaining, plan.budget))
            assert count > 0, sequence  # it has its place
            plan.budget -= count
            plan.add_chunk(sequence, count)

    def _join(self, sequence: Sequence, cached: list[int]) -> None:
        self._plan.make_own_room(sequence, blocks_for(sequence.read))
        self._plan.join(sequence, cached)
        self._note_prefix(sequence)

    def _not_ready(self, sequence: Sequence) -> Obstacle | None:
        """Why it cannot run yet, even if there is room. Others may go before it meanwhile."""
        if obstacle := sequence.live.obstacle:
            return obstacle
        if not self._plan.turn.may_run(sequence):
            return "suspect"
        if self._beyond_its_key(sequence):
            return "key"
        if sequence.unread or sequence.waits_for_beams:
            return "unread"
        if self._computing and (shareable := sequence.shareable_blocks):
            if self._comes_earlier(sequence.key(shareable - 1), sequence):
                return "prefix"
            known = len(self._cached(sequence))
            if known < shareable and self._comes_earlier(sequence.key(known), sequence):
                return "prefix"
        if self._comes_earlier(sequence.prompt, sequence) and sequence.copied_end:
            return "prefix"
        return None

    def _beyond_its_key(self, sequence: Sequence) -> bool:
        """Whether its key's limit of blocks has no room for it, even if its less urgent ones left. Then none of its
        tenant's later ones overtakes it."""
        tenant, full = self._queues.tenant_of(sequence), self._plan.full
        if tenant not in full and self._lacks_own_blocks(sequence):
            if not self._lacks_own_blocks(sequence, beside_less_urgent=False):
                return False
            full.add(tenant)
        return tenant in full

    def _lacks_own_blocks(self, sequence: Sequence, *, beside_less_urgent: bool = True) -> bool:
        """Whether it would bring its tenant above its limit of blocks, of which each of its running sequences may soon
        need one more. One that is alone always fits (admission)."""
        queues, tenant = self._queues, self._queues.tenant_of(sequence)
        if tenant.most_blocks is None:
            return False
        rows = [one for one in queues.running if queues.tenant_of(one) is tenant]
        if not beside_less_urgent:
            priority = sequence.live.generate.priority
            rows = [one for one in rows if one.live.generate.priority <= priority]
        parked = [one for one in queues.parked if queues.tenant_of(one) is tenant and not one.stalled]
        if not rows and not parked:
            return False
        held = sum(max(len(one.blocks), blocks_for(one.read)) for one in rows)  # also what one in prefill will take
        held += sum(len(one.blocks) for one in parked)
        return held + blocks_for(sequence.read) + len(rows) > tenant.most_blocks

    def _comes_earlier(self, key: Key | SharedPrompt, sequence: Sequence) -> bool:
        """Whether a running sequence before it computes `key`. A sequence never waits for a less urgent one."""
        owner = self._computing.get(key)
        return owner is not None and owner.order < sequence.order

    def _note_prefix(self, sequence: Sequence) -> None:
        prompt = sequence.prompt
        for block in range(sequence.published, prompt.full_blocks):
            self._note(sequence.key(block), sequence)
        if prompt.choices > 1 and prompt not in self._plan.prompt_sources:
            self._note(prompt, sequence)

    def _note(self, key: Key | SharedPrompt, sequence: Sequence) -> None:
        owner = self._computing.get(key)
        if owner is None or sequence.order < owner.order:
            self._computing[key] = sequence

    def _no_place(self, sequence: Sequence, cached: list[int]) -> Shortage | None:
        """What it lacks to join this step, or None. Preempts parked sequences to make room."""
        plan, queues = self._plan, self._queues
        if len(queues.running) >= plan.limits.rows:
            return Shortage(sequence, "rows", 1, 0)
        if plan.budget < max(sequence.least, 1):
            return Shortage(sequence, "budget", sequence.remaining, plan.budget)
        if plan.short_of_blocks or self._missing(sequence, cached) > self._parked_blocks():
            return self._short_of_blocks(sequence, cached)
        while self._missing(sequence, cached) > 0:
            if not self._parked_blocks():
                return self._short_of_blocks(sequence, cached)  # what they held was shared
            victim = fair_share.choose_victim(queues, plan.planned.keys(), plan.turn.kept)
            assert victim is not None, "parked ones are the first victims"
            plan.preempt(victim)
        return None

    def _short_of_blocks(self, sequence: Sequence, cached: list[int]) -> Shortage:
        """How many blocks it needs beyond the cached ones, and how many it would find, which is always fewer.

        After a preemption in this step it gets none, and parked sequences may share their blocks with others.
        """
        need = blocks_for(sequence.read) - len(cached)
        free = need - self._missing(sequence, cached) + self._parked_blocks()
        return Shortage(sequence, "blocks", need, max(min(free, need - 1), 0))

    def _cached(self, sequence: Sequence) -> list[int]:
        """The blocks of its prefix that are in the cache."""
        return self._pool.match(map(sequence.key, range(sequence.shareable_blocks)))

    def _parked_blocks(self) -> int:
        """Blocks of parked sequences: a waiting one gets them if there is no other room."""
        kept = self._plan.turn.kept
        return sum(len(sequence.blocks) for sequence in self._queues.parked if sequence.id not in kept)

    def _missing(self, sequence: Sequence, cached: list[int]) -> int:
        """How many blocks must become available before all its known tokens fit.

        One block per running sequence is kept free: each may need its next one soon, and taking it would only cause a
        preemption a few steps later.
        """
        wanted = blocks_for(sequence.read) - len(cached)
        return wanted + len(self._queues.running) - (self._pool.available - self._pool.idle(cached))
