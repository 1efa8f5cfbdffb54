"""How waiting sequences get a row: in their order, ahead of running ones that make way, never twice for one prefix."""

from .moves import Moves
from .prefix_keys import Key
from .sequence import Sequence
from .sequence_kv import blocks_short, cached_blocks, missing_blocks, parked_blocks
from .step_plan import Blocked, Shortage


class Joining:
    """The waiting sequences' part in a step."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._queues = moves.queues
        self._pool = moves.pool
        self._plan = moves.plan
        self._computing: dict[Key, Sequence] = {}  # prompt blocks that running ones will publish: the first of them
        if self._queues.waiting:  # those who share a prefix wait for it instead of computing it again
            for sequence in self._queues.running:
                self._note_prefix(sequence)

    def make_way(self) -> None:
        """Waiting sequences that are more urgent than the last running one join first, in its place if need be."""
        running = self._queues.running
        while running and (urgent := next((s for s in self._queues.waiting if not self._not_ready(s)), None)):
            if not self._moves.policy.makes_way(running[-1], urgent):
                return
            cached = cached_blocks(urgent, self._pool)
            if len(running) < self._moves.rows and self._missing(urgent, cached) <= parked_blocks(self._queues):
                self._join(urgent, cached)
            else:
                self._moves.preempt(running[-1])

    def admit(self) -> None:
        """In order, those that may join. The first that finds no place ends it: nobody overtakes a large one."""
        moves, position = self._moves, 0
        while position < len(self._queues.waiting):
            sequence = self._queues.waiting[position]
            if reason := self._not_ready(sequence):
                self._plan.blocked[sequence.id] = reason
                position += 1
                continue
            cached = cached_blocks(sequence, self._pool)
            if reason := self._no_place(sequence, cached):
                self._plan.blocked[sequence.id] = reason
                self._plan.shortage = self._shortage(sequence, cached, reason)
                return
            self._join(sequence, cached)
            count = moves.reserve(sequence, min(sequence.remaining, moves.budget))
            moves.budget -= count
            moves.add_chunk(sequence, count)

    def _join(self, sequence: Sequence, cached: list[int]) -> None:
        self._moves.join(sequence, cached)
        self._note_prefix(sequence)

    def _not_ready(self, sequence: Sequence) -> Blocked | None:
        """Why it cannot run yet, whatever room there is. Others may go before it meanwhile."""
        if sequence.live.credit <= 0:
            return "credit"
        if sequence.unread:
            return "unread"
        if self._computing and (shareable := sequence.shareable_blocks):
            if self._comes_earlier(sequence.key(shareable - 1), sequence):
                return "prefix"
            known = len(cached_blocks(sequence, self._pool))
            if known < shareable and self._comes_earlier(sequence.key(known), sequence):
                return "prefix"
        return None

    def _comes_earlier(self, key: Key, sequence: Sequence) -> bool:
        """Whether a running sequence before it computes block `key`. Nobody waits for a less urgent one."""
        owner = self._computing.get(key)
        return owner is not None and owner.order < sequence.order

    def _note_prefix(self, sequence: Sequence) -> None:
        for block in range(sequence.published, sequence.prompt.full_blocks):
            key = sequence.key(block)
            owner = self._computing.get(key)
            if owner is None or sequence.order < owner.order:
                self._computing[key] = sequence

    def _no_place(self, sequence: Sequence, cached: list[int]) -> Blocked | None:
        """Why it cannot join this step; makes room by preempting parked sequences."""
        if len(self._queues.running) >= self._moves.rows:
            return "rows"
        if self._moves.budget == 0:
            return "budget"
        if self._moves.short_of_blocks or self._missing(sequence, cached) > parked_blocks(self._queues):
            return "blocks"
        while self._missing(sequence, cached) > 0:
            if not self._queues.parked:
                return "blocks"  # what they held was shared
            self._moves.preempt(self._queues.parked[-1])
        return None

    def _missing(self, sequence: Sequence, cached: list[int]) -> int:
        return missing_blocks(sequence, cached, self._queues, self._pool)

    def _shortage(self, sequence: Sequence, cached: list[int], kind: Blocked) -> Shortage:
        """In the numbers of `_no_place`, for those who ask why."""
        if kind == "blocks":
            return Shortage(sequence.order, kind, *blocks_short(sequence, cached, self._queues, self._pool))
        return Shortage(sequence.order, kind, 1 if kind == "rows" else sequence.remaining, 0)
