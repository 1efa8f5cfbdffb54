"""LiveTable: all unfinished requests and sequences, and what they hold. Sequences begin and end here. Pure.

`finish` is the only way a sequence ends, whatever the reason. Only there are its place, blocks, credit and the worker's
record of it given back.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain, takewhile
from math import inf
from typing import TypeVar

from ...protocol.adapters import Adapter
from ...protocol.events import FinishReason
from ...protocol.messages import Admit, ChoiceTokens
from ...protocol.steps import Preparation
from .adapters import Adapters
from .blocks import BlockPool
from .grammars import Grammars
from .prefix_keys import PrefixKeys, SharedPrompt
from .prepared import Claim, Prepared
from .quarantine import Quarantine
from .queues import Queues
from .sequence import LiveRequest, Sequence

_Source = TypeVar("_Source", bound=Hashable)


class LiveTable:
    """Requests by id, sequences by number, their queues, their blocks and their timers."""

    def __init__(
        self,
        secret: bytes,
        stall_timeout: float,
        max_adapters: int = 16,
        weights: Mapping[str, float] | None = None,
        most_blocks: Mapping[str, int] | None = None,
    ) -> None:
        self.requests: dict[str, LiveRequest] = {}
        self.sequences: dict[int, Sequence] = {}
        self.queues = Queues(weights, most_blocks)
        self.background = Queues(weights, most_blocks)  # the lines of batches
        self.pool = BlockPool(0)  # has the worker's size once one is ready
        self.timers = Timers(stall_timeout)
        self.grammars = Grammars()
        self.adapters = Adapters(max_adapters)
        self.dropped: list[int] = []  # the worker must forget these with the next step
        self.sent_back = 0  # sequences, since the worker had no room for what others need
        self.quarantine = Quarantine(secret)
        self.last_step = self._last_done = 0  # that was planned, and that came back
        self.departed = deque[tuple[int, int, LiveRequest]]()  # sequences that ended in flight, and the last step then
        self.newest = 0  # the last sequence's number
        self.now = 0.0  # of the last message
        self._keys = PrefixKeys(secret)

    def add(self, admit: Admit, credit: int) -> LiveRequest:
        """Add a request with all its choices, waiting. Choices of one prompt share its tokens and keys."""
        generate = admit.request
        assert generate.id not in self.requests, f"request id {generate.id} twice"
        adapter = self.adapters.use(generate.adapter)
        live = LiveRequest(admit, credit, self.grammars.use(generate.grammar, generate.grammar_memory), adapter)
        self.requests[live.id] = live
        if generate.first_due is not None:
            self.timers.set_deadline(live.id, generate.first_due)
        used = str(adapter.number) if adapter else ""
        root = self._keys.root(generate.tenant, used, generate.cache_salt, generate.determinism)
        for number, (tokens, max_tokens) in enumerate(zip(admit.prompts, admit.max_tokens, strict=True)):
            prompt = SharedPrompt(tokens, generate.n, root, self._keys)
            choices = range(number * generate.n, (number + 1) * generate.n)
            beams = live.search_for(choices)
            for index in choices:
                self.newest += 1
                sequence = Sequence(self.newest, live, index, prompt, len(tokens) + max_tokens, beams)
                live.choices[index] = self.sequences[sequence.id] = sequence
                self.queues_of(live).add(sequence)
        return live

    def queues_of(self, live: LiveRequest) -> Queues:
        return self.background if live.generate.background else self.queues

    def grant(self, id: str, tokens: int) -> None:
        """A request's reader accepts `tokens` more tokens."""
        if live := self.requests.get(id):
            live.granted += tokens
            self.note_credit(live)

    def finish(self, sequence: Sequence, kept: int | None = None) -> None:
        """End a sequence. Of its generated tokens `kept` (None: all) count against its reader's credit."""
        live = sequence.live
        self.queues_of(live).remove(sequence)
        if sequence.known and self.last_step > self._last_done:
            self.departed.append((self.last_step, sequence.id, live))
        self._forget_kv(sequence)  # a conversation's next turn begins with this text
        self.quarantine.forget(sequence)
        del self.sequences[sequence.id]
        del live.choices[sequence.index]
        sequence.forget_unread()
        if kept is not None:
            live.spent -= len(sequence.generated) - kept
        self.note_credit(live)
        if not live.choices:
            del self.requests[live.id]
            self.grammars.release(live.grammar)
            self.adapters.release(live.adapter)
            self.timers.forget(live.id)
        if not self.requests:
            self.pool.audit_changes(())  # no sequence is left, so no block may be owned

    def rewrite(self, sequence: Sequence, generated: list[int]) -> None:
        """Have a sequence go on from other generated tokens: it is computed from what the prefix cache has of them."""
        self._send_back(sequence)
        sequence.rewrite(generated)

    def _send_back(self, sequence: Sequence) -> None:
        self.queues_of(sequence.live).move(sequence, "waiting")
        self._forget_kv(sequence)

    def _forget_kv(self, sequence: Sequence) -> None:
        sequence.publish_blocks(self.pool)
        if sequence.known:
            self.dropped.append(sequence.id)
        sequence.forget_kv(self.pool)

    def finish_all(self, live: LiveRequest) -> None:
        for sequence in tuple(live.choices.values()):
            self.finish(sequence)

    def due(self, now: float) -> dict[str, FinishReason]:
        """The requests that must end now. One that has its first token goes on to the end of its answer's time."""
        due = self.timers.due(now)
        for id in [id for id, reason in due.items() if reason == "deadline"]:
            live = self.requests[id]
            deadline = live.generate.deadline
            if live.answers and (deadline is None or deadline > now):
                del due[id]
                self.timers.forget_deadline(id)
                if deadline is not None:
                    self.timers.set_deadline(id, deadline)
        return due

    def fail(self, live: LiveRequest, code: str, message: str, retry_after: int | None = None) -> ChoiceTokens:
        """End a request with an error. One message for one of its choices, opened or not, ends them all."""
        index = min(live.choices)
        self.finish_all(live)
        return ChoiceTokens(
            id=live.id, index=index, tokens=(), reason="error", error=code, message=message, retry_after=retry_after
        )

    def step_done(self, number: int) -> None:
        """What ended before later steps were planned is not in flight any more."""
        self._last_done = number
        while self.departed and self.departed[0][0] <= number:
            self.departed.popleft()

    def with_grammar(self, number: int) -> list[LiveRequest]:
        """The requests whose answers must match this grammar."""
        return [live for live in self.requests.values() if live.grammar and live.grammar.number == number]

    def with_adapter(self, number: int) -> list[LiveRequest]:
        """The requests that use this adapter."""
        return [live for live in self.requests.values() if live.adapter and live.adapter.number == number]

    def take_preparations(self) -> list[Preparation]:
        """What the worker must begin to prepare, or forget, before its next step."""
        grammars = self.grammars.orders(lambda: self._claims(lambda live: live.grammar), self._vacate)
        # One request must not keep an adapter while it waits for a grammar, and another one the other way round.
        built = self.adapters.orders(
            lambda: self._claims(lambda live: live.adapter, lambda live: not live.grammar or live.grammar.ready),
            self._vacate,
        )
        return [*grammars, *built]

    def _claims(
        self,
        used: Callable[[LiveRequest], Prepared[_Source] | None],
        able: Callable[[LiveRequest], bool] = lambda live: True,
    ) -> dict[Prepared[_Source], Claim]:
        claims: dict[Prepared[_Source], Claim] = {}
        for live in self.requests.values():
            if not (one := used(live)) or ((old := claims.get(one)) and old.interactive and old.able):
                continue
            claim = Claim(not live.generate.background, live.credit > 0 and able(live), live.generate.tenant)
            if old is None or old.urgency < claim.urgency:
                claims[one] = claim
        return claims

    def _vacate(self, prepared: Prepared[str] | Prepared[Adapter], interactive: bool) -> bool:
        """Send back what waits for its reader with it, and for an interactive request also lines of batches.

        Returns whether nothing computes with it any more.
        """
        left = False
        for sequence in self.sequences.values():
            if sequence.place != "waiting" and prepared in sequence.live.prepared:
                line = interactive and sequence.live.generate.background
                if line or sequence.stalled:
                    self._send_back(sequence)
                    self.sent_back += 1
                else:
                    left = True
        return not left

    def forget_worker(self, num_blocks: int | None) -> int:
        """The worker's KV cache is gone: every sequence waits and is computed again. Returns how many were running.

        The next worker's cache has `num_blocks`; None: as many as this one's, until it is known.
        """
        ran = 0
        self.dropped.clear()
        self.departed.clear()
        self.grammars.forget_worker()
        self.adapters.forget_worker()
        for sequence in self.sequences.values():
            if sequence.place != "waiting":
                ran += 1
                self.queues_of(sequence.live).move(sequence, "waiting")
            sequence.forget_kv(self.pool)
            sequence.forget_unread()
            self.note_credit(sequence.live)
        self.pool.audit_changes(())
        self.pool = BlockPool(self.pool.total if num_blocks is None else num_blocks, self.pool.evictions)
        return ran

    def tables(self) -> Iterator[list[int]]:
        """The block tables of all sequences that may have one. A waiting one with blocks would fail the check."""
        return (
            sequence.blocks
            for queues in (self.queues, self.background)
            for sequence in chain(queues.running, queues.parked)
        )

    def note_credit(self, live: LiveRequest) -> None:
        """Time how long a request waits for its reader: from when it has no credit and nothing more to read."""
        if live.credit > 0:
            self.timers.stop_starving(live.id)
        elif live.choices and not live.unread:
            self.timers.starve(live.id, self.now)


class Timers:
    """Requests that time out: at their deadline, or because their reader granted no credit for too long. By id."""

    def __init__(self, stall_timeout: float) -> None:
        self._stall_timeout = stall_timeout
        self._deadlines: dict[str, float] = {}
        self._in_order: list[tuple[float, str]] = []  # the same
        self._starved: dict[str, float] = {}  # since when; oldest first

    def set_deadline(self, id: str, deadline: float) -> None:
        self._deadlines[id] = deadline
        insort(self._in_order, (deadline, id))

    def starve(self, id: str, now: float) -> None:
        """Its credit is used up: from now on it waits for its reader."""
        self._starved.setdefault(id, now)

    def stop_starving(self, id: str) -> None:
        """It has credit again."""
        self._starved.pop(id, None)

    def forget(self, id: str) -> None:
        """The request ended."""
        self._starved.pop(id, None)
        self.forget_deadline(id)

    def forget_deadline(self, id: str) -> None:
        if (deadline := self._deadlines.pop(id, None)) is not None:
            del self._in_order[bisect_left(self._in_order, (deadline, id))]

    def next_due(self) -> float:
        """When something may be due; infinity if nothing can be."""
        deadline = self._in_order[0][0] if self._in_order else inf
        return min(deadline, next(iter(self._starved.values()), inf) + self._stall_timeout)

    def due(self, now: float) -> dict[str, FinishReason]:
        """The requests whose time has come. The caller ends and forgets them."""
        ends: dict[str, FinishReason] = {}
        for _, id in takewhile(lambda item: item[0] <= now, self._in_order):
            ends[id] = "deadline"
        for id, _ in takewhile(lambda item: item[1] + self._stall_timeout <= now, self._starved.items()):
            ends.setdefault(id, "stalled")
        return ends
