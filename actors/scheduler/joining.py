"""How waiting sequences get a row: in their turn, ahead of running ones that make way, never twice for one prefix."""

from . import fair_share
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
        """Waiting sequences that go before running ones join first, in the place of those that make room if need be."""
        moves, queues = self._moves, self._queues
        while queues.running and (first := next((s for s in fair_share.turns(queues) if not self._not_ready(s)), None)):
            if not fair_share.goes_first(queues, first):
                return
            cached = cached_blocks(first, self._pool)
            missing = self._missing(first, cached) - parked_blocks(queues)
            if len(queues.running) < moves.rows and missing <= 0:
                self._join(first, cached)
                continue
            place, leaving = fair_share.makes_room(queues, first, missing)
            if not leaving:
                return
            for sequence in leaving:
                if place == "parked":
                    moves.displace(sequence)
                else:
                    moves.preempt(sequence)

    def admit(self) -> None:
        """In turn, those that may join. The first that finds no place ends it: nobody overtakes a large one."""
        moves = self._moves
        for sequence in fair_share.turns(self._queues):
            if reason := self._not_ready(sequence):
                self._plan.blocked[sequence.id] = reason
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
            victim = fair_share.choose_victim(self._queues, self._plan.planned.keys())
            assert victim is not None, "parked ones are the first victims"
            self._moves.preempt(victim)
        return None

    def _missing(self, sequence: Sequence, cached: list[int]) -> int:
        return missing_blocks(sequence, cached, self._queues, self._pool)

    def _shortage(self, sequence: Sequence, cached: list[int], kind: Blocked) -> Shortage:
        """In the numbers of `_no_place`, for those who ask why."""
        if kind == "blocks":
            return Shortage(sequence, kind, *blocks_short(sequence, cached, self._queues, self._pool))
        return Shortage(sequence, kind, 1 if kind == "rows" else sequence.remaining, 0)
