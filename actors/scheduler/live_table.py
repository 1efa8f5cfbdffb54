"""LiveTable: every unfinished request and sequence, with what they hold. Here a sequence begins, and here it ends.

`finish` is the only end of a sequence, whatever the reason: its place, its blocks, its worker's record and its credit
are given back there and nowhere else. Pure: no clock, no I/O.
"""

from collections.abc import Iterator, Set
from itertools import chain

from ...protocol.messages import Admit, ChoiceTokens
from .blocks import BlockPool
from .prefix_keys import PrefixKeys, SharedPrompt
from .queues import Queues
from .sequence import LiveRequest, Sequence
from .timers import Timers


class LiveTable:
    """Requests by id, sequences by number, their queues, their blocks and their timers."""

    def __init__(self, keys: PrefixKeys, timers: Timers, max_losses: int) -> None:
        self.requests: dict[str, LiveRequest] = {}
        self.sequences: dict[int, Sequence] = {}
        self.queues = Queues()
        self.pool = BlockPool(0)  # of the worker's size once one is ready
        self.timers = timers
        self.dropped: list[int] = []  # the worker shall forget these with the next step
        self._keys = keys
        self.max_losses = max_losses  # of a request; it fails with the last of them
        self.newest = 0  # the last sequence's number

    def add(self, admit: Admit, credit: int) -> LiveRequest:
        """A new request with all its choices, waiting. Choices of one prompt share its tokens and keys."""
        generate = admit.request
        assert generate.id not in self.requests, f"request id {generate.id} twice"
        live = LiveRequest(
            generate, stop_token_ids=admit.stop_token_ids, eos_token_ids=admit.eos_token_ids, credit=credit
        )
        self.requests[generate.id] = live
        root = self._keys.root(generate.tenant, generate.adapter, generate.cache_salt, generate.determinism)
        for number, (tokens, max_tokens) in enumerate(zip(admit.prompts, admit.max_tokens, strict=True)):
            prompt = SharedPrompt(tokens, generate.n, root, self._keys)
            for index in range(number * generate.n, (number + 1) * generate.n):
                self.newest += 1
                sequence = Sequence(self.newest, live, index, prompt, len(tokens) + max_tokens)
                live.choices[index] = self.sequences[sequence.id] = sequence
                self.queues.add(sequence)
        return live

    def finish(self, sequence: Sequence, kept: int | None = None) -> None:
        """End a sequence. Of its generated tokens `kept` (None: all) count against its reader's credit."""
        live = sequence.live
        sequence.publish_blocks(self.pool)  # a conversation's next turn begins with this text
        self.queues.remove(sequence)
        if sequence.known:
            self.dropped.append(sequence.id)
        sequence.forget_kv(self.pool)
        del self.sequences[sequence.id]
        del live.choices[sequence.index]
        self._forget_unread(sequence)
        if kept is not None:
            live.spent -= len(sequence.generated) - kept
        if live.credit > 0:
            self.timers.feed(live.id)
        if not live.choices:
            del self.requests[live.id]
            self.timers.forget(live.id)
        if not self.requests:
            self.pool.audit_changes(())  # nobody is left, so nothing may be owned

    def finish_all(self, live: LiveRequest) -> None:
        for sequence in tuple(live.choices.values()):
            self.finish(sequence)

    def fail(self, live: LiveRequest, code: str, message: str) -> ChoiceTokens:
        """End a request with an error: the last word of one of its choices, opened or not, speaks for all."""
        index = min(live.choices)
        self.finish_all(live)
        return ChoiceTokens(id=live.id, index=index, tokens=(), reason="error", error=code, message=message)

    def suspects(self, computed: Set[int]) -> list[LiveRequest]:
        """The requests that may be what kills workers: computed in each of the last losses, with no token between.

        Neighbours of the culprit are suspect too when they got no token either; that is better than losing the engine.
        """
        found: dict[str, LiveRequest] = {}
        for id in sorted(computed & self.sequences.keys()):
            sequence = self.sequences[id]
            sequence.losses += 1
            if sequence.losses >= self.max_losses:
                found[sequence.live.id] = sequence.live
        return list(found.values())

    def forget_worker(self) -> int:
        """The worker is gone with its KV cache: every sequence waits, to be computed anew. Returns how many ran."""
        ran = 0
        self.dropped.clear()
        for sequence in self.sequences.values():
            if sequence.place != "waiting":
                ran += 1
                self.queues.move(sequence, "waiting")
            sequence.forget_kv(self.pool)
            self._forget_unread(sequence)
            if sequence.live.credit > 0:
                self.timers.feed(sequence.live.id)
        self.pool.forget_contents()
        return ran

    def tables(self) -> Iterator[list[int]]:
        """The block tables of all sequences that may have one; a block of any other shows up as one too many."""
        return (sequence.blocks for sequence in chain(self.queues.running, self.queues.parked))

    def _forget_unread(self, sequence: Sequence) -> None:
        """Tokens that are still on their way will not be read: they cost the reader nothing."""
        sequence.live.spent -= sequence.unread
        sequence.total = sequence.read
