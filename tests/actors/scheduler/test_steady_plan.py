"""plan_steady: what plan_step would plan, wherever it plans at all."""

import random
from collections.abc import Mapping
from copy import deepcopy

import pytest

from triolet.actors.scheduler import state as scheduler_state
from triolet.actors.scheduler import steady_plan
from triolet.actors.scheduler.blocks import BlockPool
from triolet.actors.scheduler.plan import plan_step
from triolet.actors.scheduler.queues import Queues
from triolet.actors.scheduler.sequence import Sequence
from triolet.actors.scheduler.steady_plan import _undo, plan_steady
from triolet.actors.scheduler.step_plan import StepLimits, StepPlan
from triolet.protocol.messages import Credit, Stop
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk

from .scheduling import Bench, admit, done, ready, text


def outcome(plan: StepPlan, queues: Queues, pool: BlockPool) -> object:
    """All that a plan says and leaves behind.

    Of several tenants all but the order: if little is left, plan_step has rows, and who gets which blocks, by rank.
    """
    if len(queues.tenants) > 1:
        chunks = sorted((c.sequence, c.start, c.count, len(c.blocks), c.sample) for c in plan.chunks)
        left = [(s.id, s.place, s.computed, s.unread, len(s.blocks), s.published, s.live.spent) for s in queues.running]
        queues.charge(queues.running)  # now or later: the sums are exact
        served = [tenant.served for tenant in queues.tenants.values()]
        return chunks, plan.prefill_tokens, plan.preempted, plan.blocked, left, served, pool.counts(), pool.evictions
    places = (queues.waiting, queues.running, queues.parked)
    sequences = [
        (s.id, s.place, s.computed, s.unread, s.blocks, s.published, s.known, s.live.unread, s.live.spent)
        for place in places
        for s in place
    ]
    work = (plan.chunks, plan.new, plan.copies, plan.dropped, plan.prefill_tokens)
    return work, plan.started, plan.preempted, plan.blocked, sequences, pool.counts(), pool.evictions


class Compared:
    """Stands in for plan_steady: compares every plan it gives with the other way's, on copies."""

    def __init__(self, limits: StepLimits, fault: str = "") -> None:
        self.plans = self.refused = self.undone = self.with_blocks = self.longer = 0
        self._limits = limits
        self._fault = fault

    def undo(self, planned: list[Sequence], chunks: list[Chunk]) -> None:
        self.undone += bool(planned)
        if self._fault != "left as it is":
            _undo(planned, chunks)

    def __call__(self, queues: Queues, pool: BlockPool, limits: StepLimits) -> StepPlan | None:
        before = deepcopy((queues, pool))
        plan = plan_steady(queues, pool, limits)
        if plan is None:
            self.refused += 1
            empty = StepPlan(queues, pool, limits)
            assert outcome(empty, queues, pool) == outcome(empty, *before)  # nothing has changed
            return None
        if self._fault == "published" and plan.chunks:
            queues.running[0].published += 1
        if self._fault == "order":
            plan.chunks.reverse()
        self.plans += 1
        self.with_blocks += any(chunk.blocks for chunk in plan.chunks)
        self.longer += any(chunk.count > 1 for chunk in plan.chunks)
        assert outcome(plan, queues, pool) == outcome(plan_step(*before, self._limits), *before)
        return plan


def run(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    fault: str = "",
    *,
    several: float = 0.0,
    blocks: int = 24,
    max_step_tokens: int = 256,
    weights: Mapping[str, float] | None = None,
) -> Compared:
    """`several`: how often a step brings several tokens a row. `weights`: of tenants that take turns."""
    limits = StepLimits(max_step_tokens=max_step_tokens, max_running=8, context_length=2048)
    compared = Compared(limits, fault)
    monkeypatch.setattr(scheduler_state, "plan_steady", compared)
    monkeypatch.setattr(steady_plan, "_undo", compared.undo)
    rng = random.Random(seed)
    worker = ready(num_blocks=blocks, max_step_tokens=max_step_tokens, max_running=limits.max_running)
    bench = Bench(worker=worker, outbox_tokens=40, weights=weights)
    for number in range(12):
        choices, length, tokens = rng.choice((1, 1, 2)), rng.randrange(1, 150), rng.randrange(1, 140)
        strict, scored = rng.random() < 0.3, rng.random() < 0.2
        bench.send(
            admit(
                f"r{number}", text(length, rng.choice((1, 200))), max_tokens=tokens, n=choices,
                determinism="strict" if strict else "default",
                sampling=Sampling(prompt_logprobs=1 if scored else None),
                tenant=sorted(weights)[number % len(weights)] if weights else "",
            )
        )  # fmt: skip
        for _ in range(rng.randrange(40)):
            if not bench.state.table.queues:
                break
            live = rng.choice(list(bench.state.table.requests.values()))
            bench.send(Credit(id=live.id, tokens=rng.randrange(1, 12)))
            if rng.random() < 0.02:
                bench.send(Stop(id=live.id, index=min(live.choices), tokens_kept=0))
            if step := bench.state.plan():
                count = rng.randrange(1, 20) if rng.random() < several else 1
                bench.send(done(step, rng.choice((5, 5, 5, 5, 0)) if rng.random() < 0.05 else 5, count))
    return compared


@pytest.mark.parametrize("seed", range(6))
def test_it_plans_what_plan_step_plans(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    compared = run(monkeypatch, seed)
    assert compared.plans > 20
    assert compared.refused > 5
    assert compared.with_blocks > 0


@pytest.mark.parametrize("seed", range(6))
def test_it_plans_the_same_for_tenants_of_different_weights(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    compared = run(monkeypatch, seed, weights={"": 1.0, "t": 3.0})
    assert compared.plans > 20
    assert compared.refused > 5


@pytest.mark.parametrize("seed", range(6))
def test_it_plans_the_same_where_rows_bring_several_tokens(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    compared = run(monkeypatch, seed, several=0.3)
    assert compared.plans > 20
    assert compared.longer > 5


@pytest.mark.parametrize(("blocks", "max_step_tokens"), [(8, 256), (24, 8), (12, 24)])
def test_what_it_refuses_it_leaves_as_it_was(
    monkeypatch: pytest.MonkeyPatch, blocks: int, max_step_tokens: int
) -> None:
    undone = 0
    for seed in range(4):
        undone += run(monkeypatch, seed, several=0.2, blocks=blocks, max_step_tokens=max_step_tokens).undone
    assert undone > 5


@pytest.mark.parametrize("fault", ["published", "order", "left as it is"])
def test_a_plan_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with pytest.raises(AssertionError):
        run(monkeypatch, 0, fault)


def test_a_scored_prompt_whose_last_chunk_is_one_token_is_left_to_plan_step() -> None:
    bench = Bench(worker=ready(max_step_tokens=8))
    bench.send(admit("r", text(10), max_tokens=0, sampling=Sampling(prompt_logprobs=1), echo=True))
    chunks: list[tuple[int, int, bool]] = []
    for _ in range(2):
        step = bench.plan()
        chunks += [(chunk.start, chunk.count, chunk.prompt_logprobs) for chunk in step.chunks]
        bench.send(done(step))
    assert chunks == [(0, 8, True), (8, 1, True)]
