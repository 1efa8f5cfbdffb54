"""Requests that may have killed a worker, and those that are known to do so. Pure.

A worker that crashes or hangs takes the KV of all sequences with it; one of them is to blame, or none. Each that was
being computed becomes a suspect: on the next worker it is computed alone, in steps of its own between everybody else's,
until it has brought as many tokens as were in flight. If the worker dies again meanwhile, the culprit is known: it
fails at its second loss, and the same request is refused for a while. The others have lost one step.

A worker that is killed from outside makes nobody suspect at first: kernels that run out of memory kill with the same
signal. So a sequence that dies with one worker after another is a suspect too, and fails in the end.
"""

import hashlib
from typing import Final

import msgspec
from msgspec import Struct, structs

from ...protocol.steps import Step
from .sequence import LiveRequest, Sequence

REFUSED_SECONDS: Final = 600.0  # that a convicted request is refused for
MOST_REFUSED: Final = 1000  # the oldest are forgotten first
PROBATION: Final = 2  # tokens that a suspect must bring alone: as many as are in flight of one sequence
CONVICTED_AT: Final = 2  # losses of one that was computed alone when the worker crashed


class Conviction(Struct, frozen=True, kw_only=True):
    """A request that killed workers, for whoever mends the cause."""

    live: LiveRequest
    losses: int
    reason: str  # how the last worker ended
    generated: tuple[int, ...]  # tokens of its answer that were known, by choice
    steps: tuple[Step, ...]  # that were in flight


class Quarantine:
    """Suspects by number, and the fingerprints of convicted requests. `secret` keys them."""

    def __init__(self, secret: bytes) -> None:
        self.suspects: dict[int, Sequence] = {}
        self._probation: dict[int, int] = {}  # tokens that each has still to bring
        self._secret = secret
        self._refused: dict[bytes, float] = {}  # until when, oldest first

    def suspect(self, sequence: Sequence) -> None:
        """It is computed alone from now on, or still is."""
        self.suspects[sequence.id] = sequence
        self._probation[sequence.id] = PROBATION

    def survived(self, sequence: Sequence) -> None:
        """A step brought its next token."""
        if sequence.id not in self.suspects:
            sequence.losses = 0
            return
        self._probation[sequence.id] -= 1
        if not self._probation[sequence.id]:
            self.forget(sequence)
            sequence.losses = 0

    def forget(self, sequence: Sequence) -> None:
        """It has ended, or is suspect no more; harmless for others."""
        if self.suspects.pop(sequence.id, None):
            del self._probation[sequence.id]

    def convict(self, live: LiveRequest, now: float) -> None:
        """Refuse requests like this one for a while."""
        self._refused[self._fingerprint(live)] = now + REFUSED_SECONDS
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def refuses(self, live: LiveRequest, now: float) -> bool:
        if not self._refused:  # nearly always: a long prompt takes milliseconds to digest
            return False
        return self._refused.get(self._fingerprint(live), 0.0) > now

    def _fingerprint(self, live: LiveRequest) -> bytes:
        """Of what is computed. Not the seed: most clients leave it to the server, which draws another for a retry."""
        generate = live.generate
        sampling = structs.replace(generate.sampling, seed=0)
        adapter = generate.adapter and generate.adapter.name
        what = (live.prompts, sampling, generate.grammar, adapter, generate.n, generate.beams, generate.pooled)
        return hashlib.blake2b(msgspec.msgpack.encode(what), key=self._secret, digest_size=16).digest()
