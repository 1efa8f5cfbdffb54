"""Bugs to plant: each damages the scheduler as a real mistake would, often only now and then. All must be found."""

import random
from collections.abc import Callable, Generator
from collections.abc import Sequence as Items
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

from triolet.actors.gateway.gateway import Gateway
from triolet.actors.gateway.history import StreamRecord
from triolet.actors.scheduler import plan
from triolet.actors.scheduler.blocks import BlockPool
from triolet.actors.scheduler.plan import Joining
from triolet.actors.scheduler.prefix_keys import Key, PrefixKeys
from triolet.actors.scheduler.sequence import LiveRequest, Sequence
from triolet.actors.scheduler.state import SchedulerState
from triolet.actors.scheduler.step_plan import StepPlan
from triolet.protocol.events import Finished, FinishReason, TerminalEvent
from triolet.protocol.settings import BLOCK_SIZE
from triolet.protocol.steps import Chunk, Row, StepDone

RARELY = 0.02

# A plant names what it replaces and makes the damaged version out of the right one.
Plant = tuple[object, str, Callable[[Any, random.Random], Any]]  # Any: the parts have different signatures
MakeRoot = Callable[[PrefixKeys, str, str, str, str], Key]


def _nothing(_subject: object) -> None: ...


def _leaked_block(right: Callable[[BlockPool, Items[int]], None], rng: random.Random) -> object:
    def release(pool: BlockPool, blocks: Items[int]) -> None:
        right(pool, blocks[:-1] if rng.random() < RARELY else blocks)

    return release


def _doubled_token(right: Callable[[SchedulerState, StepDone, float], None], rng: random.Random) -> object:
    def apply(state: SchedulerState, done: StepDone, now: float) -> None:
        rows = (structs.replace(row, tokens=row.tokens * 2) if rng.random() < RARELY else row for row in done.rows)
        right(state, structs.replace(done, rows=tuple(rows)), now)

    return apply


def _lost_terminal_event(
    right: Callable[[SchedulerState, LiveRequest, FinishReason], None], rng: random.Random
) -> object:
    def drop(state: SchedulerState, live: LiveRequest, reason: FinishReason) -> None:
        if rng.random() < 0.3:
            state.table.finish_all(live)
        else:
            right(state, live, reason)

    return drop


def _block_published_before_it_is_full(right: object, rng: random.Random) -> object:
    def publish_blocks(sequence: Sequence, pool: BlockPool) -> None:
        full = min(sequence.computed + 1, sequence.read) // BLOCK_SIZE
        while sequence.published < min(full, len(sequence.blocks)):
            pool.publish(sequence.blocks[sequence.published], sequence.key(sequence.published))
            sequence.published += 1

    return publish_blocks


def _prefix_shared_between_tenants(right: MakeRoot, rng: random.Random) -> object:
    def root(keys: PrefixKeys, tenant: str, adapter: str, salt: str, determinism: str) -> Key:
        return right(keys, "", adapter, salt, determinism)

    return root


def _strict_reads_what_default_computed(right: MakeRoot, rng: random.Random) -> object:
    def root(keys: PrefixKeys, tenant: str, adapter: str, salt: str, determinism: str) -> Key:
        return right(keys, tenant, adapter, salt, "default")

    return root


def _strict_publishes_what_it_generated(right: object, rng: random.Random) -> object:
    def publishable(sequence: Sequence) -> int:
        return sequence.read // BLOCK_SIZE

    return property(publishable)


def _preempted_sequence_not_dropped(right: Callable[[Sequence, BlockPool], None], rng: random.Random) -> object:
    def forget_kv(sequence: Sequence, pool: BlockPool) -> None:
        known = sequence.known
        right(sequence, pool)
        sequence.known = known  # so the worker gets a chunk where it needs the record

    return forget_kv


def _unread_tokens_survive_a_lost_worker(right: object, rng: random.Random) -> object:
    return _nothing


def _rows_of_parked_sequences_freed_a_plan_late(right: object, rng: random.Random) -> object:
    return _nothing


def _copies_a_prompt_that_is_not_computed(right: Callable[[Joining, StepPlan], None], rng: random.Random) -> object:
    def begin(joining: Joining, step: StepPlan) -> None:
        right(joining, step)
        for sequence in step.queues.running:
            if len(sequence.blocks) > sequence.copied_end // BLOCK_SIZE:
                step.prompt_sources.setdefault(sequence.prompt, sequence)
        joining._computing.clear()

    return begin


def _copies_another_block(right: Callable[[StepPlan], None], rng: random.Random) -> object:
    def release_sources(step: StepPlan) -> None:
        right(step)
        for target, source in step.copies.items():
            step.copies[target] = (source + (rng.random() < 0.3)) % step.pool.total

    return release_sources


def _lost_copy(right: Callable[[StepPlan], None], rng: random.Random) -> object:
    def release_sources(step: StepPlan) -> None:
        right(step)
        if rng.random() < 0.3:
            step.copies.clear()

    return release_sources


def _forced_tokens_planned_twice(right: object, rng: random.Random) -> object:
    return property(lambda sequence: False)


def _extended_chunk_not_followed(right: Callable[[Sequence, Chunk, Row], None], rng: random.Random) -> object:
    def follow(sequence: Sequence, chunk: Chunk, row: Row) -> None:
        right(sequence, chunk, structs.replace(row, computed=chunk.count))

    return follow


def _placeholder_kept(right: Callable[[Sequence, Chunk, Row], None], rng: random.Random) -> object:
    def follow(sequence: Sequence, chunk: Chunk, row: Row) -> None:
        right(sequence, chunk, structs.replace(row, tokens=(1,)))

    return follow


def _beam_keeps_the_names_of_other_tokens(right: Callable[[Sequence, list[int]], None], rng: random.Random) -> object:
    def rewrite(sequence: Sequence, generated: list[int]) -> None:
        keys = sequence._own_keys.copy()
        right(sequence, generated)
        sequence._own_keys = keys

    return rewrite


def _beam_that_does_not_wait(right: object, rng: random.Random) -> object:
    return property(lambda sequence: False)


def _ends_twice(right: Callable[[Gateway, str, TerminalEvent], None], rng: random.Random) -> object:
    def finish(gateway: Gateway, id: str, event: TerminalEvent) -> None:
        live = gateway._live.get(id)
        right(gateway, id, event)
        if live is not None and rng.random() < RARELY:
            gateway._account(live, event)

    return finish


def _ends_unrecorded(right: Callable[[Gateway, StreamRecord, TerminalEvent], None], rng: random.Random) -> object:
    def account(gateway: Gateway, live: StreamRecord, event: TerminalEvent) -> None:
        if not (isinstance(event, Finished) and event.reason == "cancelled") or rng.random() > RARELY:
            right(gateway, live, event)

    return account


def _recorded_before_the_last_token(
    right: Callable[[Gateway, StreamRecord, TerminalEvent], None], rng: random.Random
) -> object:
    def account(gateway: Gateway, live: StreamRecord, event: TerminalEvent) -> None:
        live.completion_tokens -= live.completion_tokens > 0 and rng.random() < RARELY
        right(gateway, live, event)

    return account


# Found through the real gateway only.
GATEWAY_PLANTS: dict[str, Plant] = {
    "ended twice": (Gateway, "finish", _ends_twice),
    "ended without a record": (Gateway, "_account", _ends_unrecorded),
    "recorded with a token less": (Gateway, "_account", _recorded_before_the_last_token),
}
PLANTS: dict[str, Plant] = {
    "forced tokens planned twice": (Sequence, "ahead_of_plan", _forced_tokens_planned_twice),
    "extended chunk not followed": (Sequence, "follow", _extended_chunk_not_followed),
    "placeholder kept": (Sequence, "follow", _placeholder_kept),
    "beam keeps the names of other tokens": (Sequence, "rewrite", _beam_keeps_the_names_of_other_tokens),
    "beam that does not wait": (Sequence, "waits_for_beams", _beam_that_does_not_wait),
    "leaked block": (BlockPool, "release", _leaked_block),
    "doubled token": (SchedulerState, "_apply", _doubled_token),
    "lost terminal event": (SchedulerState, "_drop", _lost_terminal_event),
    "block published before it is full": (Sequence, "publish_blocks", _block_published_before_it_is_full),
    "prefix shared between tenants": (PrefixKeys, "root", _prefix_shared_between_tenants),
    "strict reads what default computed": (PrefixKeys, "root", _strict_reads_what_default_computed),
    "strict publishes what it generated": (Sequence, "cacheable_blocks", _strict_publishes_what_it_generated),
    "preempted sequence not dropped": (Sequence, "forget_kv", _preempted_sequence_not_dropped),
    "row freed a plan late": (plan, "park", _rows_of_parked_sequences_freed_a_plan_late),
    "copy of a prompt that is not computed": (Joining, "__init__", _copies_a_prompt_that_is_not_computed),
    "copy of another block": (StepPlan, "release_sources", _copies_another_block),
    "lost copy": (StepPlan, "release_sources", _lost_copy),
    "unread tokens survive": (Sequence, "forget_unread", _unread_tokens_survive_a_lost_worker),
}


@contextmanager
def damaged(plant: Plant, seed: int) -> Generator[None]:
    """Damage the engine within the block; the same seed damages it at the same places."""
    where, attribute, damage = plant
    right = getattr(where, attribute)
    setattr(where, attribute, damage(right, random.Random(seed)))
    try:
        yield
    finally:
        setattr(where, attribute, right)


def planted(name: str, seed: int) -> AbstractContextManager[None]:
    return damaged((PLANTS | GATEWAY_PLANTS)[name], seed)
