"""When a request that arrives now gets its first token at the earliest, by what steps have taken. Pure.

It counts only what is certain to be computed before: prompts of the sequences whose turn comes first, without what the
prefix cache has, every token as if it began its text, and no more time for a step than a known one of its size took.
Newcomers, slow readers and preemptions come on top: so who is refused could hardly have been served in time.
"""

from collections.abc import Iterator
from math import ceil
from typing import Final, NamedTuple

from ...protocol.settings import BLOCK_SIZE
from ..supervisor.step_cost import TypicalCost
from .blocks import BlockPool
from .fair_share import goes_first, lined_up, position_of, rank
from .prefix_keys import Key
from .queues import Queues
from .sequence import LiveRequest, Sequence
from .standing import StartRate, WaitReasons

LOOKED_AT: Final = 16  # waiting sequences that are looked up in the cache; the others are like them, or shorter


class TooLate(NamedTuple):
    message: str
    retry_after: int  # seconds


def first_token_seconds(tokens: float, decoding: int, budget: int, cost: TypicalCost) -> float:
    """Until this many prompt tokens are computed, in steps of `budget` tokens that `decoding` rows share."""
    room = max(budget - decoding, 1)
    whole, rest = divmod(tokens, room)
    return whole * cost.seconds(room + decoding) + (cost.seconds(rest + decoding) if rest else 0.0)


def tokens_before(queues: Queues, pool: BlockPool, sequence: Sequence) -> tuple[int, int]:
    """Prompt tokens to be computed before a waiting sequence's own, and these; each shared block once."""
    mine, seen = rank(queues, sequence), set[Key]()
    before = 0
    for one in queues.running:
        if one.remaining > 1:
            seen.update(one.key(block) for block in range(one.shareable_blocks))
            if rank(queues, one) < mine:
                before += one.remaining
    ahead = list(_ahead(queues, sequence))
    looked = sum(_uncached(one, pool, seen) for one in ahead[:LOOKED_AT])
    typical = looked // LOOKED_AT
    before += looked + sum(min(typical, one.read) for one in ahead[LOOKED_AT:])
    return before, _uncached(sequence, pool, seen)


def _ahead(queues: Queues, sequence: Sequence) -> Iterator[Sequence]:
    for one in lined_up(queues):
        if one is sequence:
            return
        if not one.live.obstacle:
            yield one


def _uncached(sequence: Sequence, pool: BlockPool, seen: set[Key]) -> int:
    keys = [sequence.key(block) for block in range(sequence.shareable_blocks)]
    new = [key for key in keys[len(pool.match(keys)) :] if key not in seen]
    seen.update(new)
    return sequence.read - (len(keys) - len(new)) * BLOCK_SIZE


def too_late(live: LiveRequest, waits: WaitReasons, cost: TypicalCost, rate: StartRate, now: float) -> TooLate | None:
    """Why the first token, or the shortest answer asked for, cannot come before the deadline; None if it can."""
    generate, queues, limits = live.generate, waits.queues, waits.limits
    if generate.first_due is None or generate.background or limits is None or not cost.known:
        return None
    sequence = next(iter(live.choices.values()))
    before, own = tokens_before(queues, waits.pool, sequence)
    # Several tenants: perhaps a step of its own (sharing.py).
    decoding = 0 if queues.several_tenants else sum(1 for one in queues.running if one.remaining <= 1)
    first = first_token_seconds(before + own, decoding, limits.max_step_tokens, cost)
    if len(queues.running) >= limits.rows and not goes_first(queues, sequence):
        row_in = rate.seconds_until(position_of(queues, sequence), now)
        first = max(first, (row_in or 0.0) + first_token_seconds(own, decoding, limits.max_step_tokens, cost))
    least = generate.sampling.min_tokens
    shortest = first + max(least - 1, 0) * cost.seconds(1)
    due, seconds, what = generate.first_due, first, "The first token"
    if now + first <= due and generate.deadline is not None:
        due, seconds, what = generate.deadline, shortest, f"An answer of min_tokens {least}"
    if now + seconds <= due:
        return None
    message = (
        f"{what} cannot come before the deadline: by what steps took of late it comes in {seconds:.3g} s at the "
        f"earliest ({before} tokens of other prompts are computed before the {own} of this one), and "
        f"{max(due - now, 0):.3g} s are left"
    )
    return TooLate(message, max(ceil(now + seconds - due), 1))
