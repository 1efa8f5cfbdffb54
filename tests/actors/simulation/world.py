"""One simulated life of the scheduler, from a seed: seeded task order, a clock that jumps, a device that is an oracle.

`simulate(seed)` checks after every step that the ledger balances and that the plan kept its limits, and at the end that
every request had exactly one end, that every token was right and in order, and that nothing is left. It returns a
digest of every message: the same seed gives the same digest.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

import msgspec
import trio
import trio.testing
from trio._core import _run as trio_run

from triolet.actors.scheduler.blocks import blocks_for
from triolet.actors.scheduler.scheduler import run_scheduler
from triolet.actors.scheduler.sequence import Sequence
from triolet.actors.scheduler.state import SchedulerState
from triolet.protocol.messages import ToDetokenizer, ToScheduler
from triolet.protocol.settings import BLOCK_SIZE
from triolet.protocol.steps import Step, WorkerOrder

from .clients import read
from .device import MAX_ADAPTERS, FakeDevice
from .front import FrontDesk, SimulationError, Stream, require
from .scenario import Log, Scenario, draw_scenario
from .worker import Supervised

PATIENCE = 3_600.0  # simulated seconds; no scenario needs more than some minutes unless it is stuck


# Lives through a scenario; returns how each request ended.
Life = Callable[[Scenario, SchedulerState, random.Random, Log], Awaitable[list[str]]]


class Outcome(NamedTuple):
    """What a run shows: equal digests mean equal runs, message by message."""

    digest: str
    seconds: float  # that it lasted, on its own clock
    steps: int
    preemptions: int
    worker_losses: int
    prefix_hit_tokens: int
    copies: int  # of KV blocks
    ends: dict[str, int]


def simulate(seed: int) -> Outcome:
    """Live one life; raises what goes wrong."""
    return run_life(seed, _live)


def deterministic(seed: int) -> random.Random:
    """The order of tasks follows from the seed; so does all that is drawn from what this returns."""
    # Private names of trio: the scheduler of tasks draws from this generator and, with this flag, from nothing else.
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # declared Final
    trio_run._r.seed(seed)
    return random.Random(seed)


def run_life(seed: int, life: Life) -> Outcome:
    """Everything that a seed determines, around any front."""
    rng = deterministic(seed)
    scenario = draw_scenario(rng)
    log: Log = []
    state = SchedulerState(
        outbox_tokens=scenario.outbox_tokens,
        stall_timeout=scenario.stall_timeout,
        max_steps_in_flight=scenario.max_steps_in_flight,
        secret=b"simulation",
        max_losses=3,
        max_adapters=MAX_ADAPTERS,
    )
    clock = trio.testing.MockClock(autojump_threshold=0)
    ends = trio.run(life, scenario, state, rng, log, clock=clock)
    totals = state.totals
    digest = hashlib.sha256(msgspec.msgpack.encode(log)).hexdigest()[:16]
    return Outcome(
        digest=digest,
        seconds=clock.current_time(),
        steps=totals.steps,
        preemptions=totals.preemptions,
        worker_losses=totals.worker_losses,
        prefix_hit_tokens=totals.prefix_hit_tokens,
        copies=sum(len(step.copies) for _, step in log if isinstance(step, Step)),
        ends=dict(Counter(ends)),
    )


async def _live(scenario: Scenario, state: SchedulerState, rng: random.Random, log: Log) -> list[str]:
    to_scheduler, inbox = trio.open_memory_channel[ToScheduler](float("inf"))
    to_worker, steps = trio.open_memory_channel[WorkerOrder](float("inf"))
    to_desk, texts = trio.open_memory_channel[ToDetokenizer](0)
    desk = FrontDesk(to_scheduler, log)
    supervised = Supervised(scenario, rng, log)
    check_every_plan(state, scenario)
    async with trio.open_nursery() as actors:
        await actors.start(partial(run_scheduler, inbox, to_worker, to_desk, state=state))
        actors.start_soon(supervised.run, steps, to_scheduler.clone())
        actors.start_soon(desk.run, texts)
        with trio.move_on_after(PATIENCE) as patience:
            async with trio.open_nursery() as clients:
                for admit, habit in scenario.requests:
                    stream = Stream(admit, rng)
                    clients.start_soon(read, desk, stream, habit, rng, scenario.outbox_tokens)
        if patience.cancelled_caught:
            stuck = {id: state.standing(id, trio.current_time()) for id in desk.live}
            raise SimulationError(f"no end after {PATIENCE} s: {stuck}")
        await trio.sleep(scenario.stall_timeout + 30)  # steps in flight, restarts, and whoever was left behind
        require(not desk.live, f"no terminal event for {sorted(desk.live)}")
        require(all(stream.terminal for stream in desk.streams.values()), "a stream without an end")
        check_nothing_left(state, supervised)
        actors.cancel_scope.cancel()
    return [str(stream.terminal) for stream in desk.streams.values()]


def check_every_plan(state: SchedulerState, scenario: Scenario, audit_every: int = 1) -> None:
    """Of what takes long, only each so-manieth plan is asked."""
    plan, plans = state.plan, count()

    def checked() -> Step | None:
        step = plan()
        if step is None:
            stuck = [] if state.in_flight or state.waits.limits is None else list(state.table.sequences.values())
            able = [one for one in stuck if not one.live.obstacle]
            if state.table.quarantine.suspects and any(one.awaits_preparation for one in state.table.requests.values()):
                return None  # suspects wait for what is prepared, and others perhaps for their blocks
            require(not able, "nothing is planned for one that could run")
            return None
        if next(plans) % audit_every:
            return step
        table, queues = state.table, state.table.queues
        table.pool.audit(table.tables())
        require(len(queues.running) <= scenario.max_running, "more rows than the worker has")
        require(len(queues) == len(table.sequences), "a sequence is in no queue")
        for sequence in queues.waiting:
            if sequence.blocks or sequence.computed:
                raise SimulationError(f"{sequence} waits with KV")
        for sequence in (*queues.running, *queues.parked):
            if len(sequence.blocks) != blocks_for(sequence.computed):
                raise SimulationError(f"{sequence} has wrong blocks: {len(sequence.blocks)}")
        _check_sharing(state)
        for live in table.requests.values():
            require(live.credit >= 0 or live.grammar is not None, "over its credit")
        return step

    state.plan = checked  # type: ignore[method-assign]  # every plan is checked as it is made


def _check_sharing(state: SchedulerState) -> None:
    """Two tables name the same block only at the same place behind the same tokens of the same namespace."""
    tables: dict[int, list[tuple[int, Sequence]]] = {}
    for sequence in state.table.sequences.values():
        for place, block in enumerate(sequence.blocks):
            tables.setdefault(block, []).append((place, sequence))
    for block, users in tables.items():
        if len(users) > 1:
            whats = {_what(place, sequence) for place, sequence in users}
            require(len(whats) == 1, f"block {block} is shared by different texts")
            require(len({sequence.id for _, sequence in users}) == len(users), f"a table names block {block} twice")


def _what(place: int, sequence: Sequence) -> tuple[object, ...]:
    generate = sequence.live.generate
    prefix = sequence.tokens_between(0, (place + 1) * BLOCK_SIZE)
    return (generate.tenant, generate.adapter, generate.cache_salt, generate.determinism, place, prefix)


class HasDevice(Protocol):
    @property
    def device(self) -> FakeDevice | None: ...


def check_nothing_left(state: SchedulerState, worker: HasDevice | None) -> None:
    """Nobody holds anything once every request has ended."""
    table = state.table
    require(not table.requests and not table.sequences and not table.queues, "the scheduler still holds requests")
    table.pool.audit(())
    require(not state.in_flight, f"steps in flight for nobody: {list(state.in_flight)}")
    if worker is not None and worker.device is not None:
        left = set(worker.device.rows) - set(table.dropped)
        require(not left, f"the worker was never told to forget {sorted(left)}")
