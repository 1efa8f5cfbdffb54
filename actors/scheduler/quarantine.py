"""Sequences that may have killed a worker, and requests that are known to do so. Pure.

A worker that crashes or hangs takes the KV of all sequences with it; one of them is to blame, or none (blame.py). Each
that was being computed becomes a suspect: it is computed alone (apart.py) until it has brought as many tokens as were
in flight. What is known of a request holds for others like it: a client that left and asks again begins as a suspect,
and what was convicted is refused for a while.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct, structs

from .sequence import LiveRequest, Sequence

REMEMBERED_SECONDS: Final = 600.0  # that a request which was in a lost worker is known for
MOST_REMEMBERED: Final = 1000  # the oldest are forgotten first; more than run at the same time
PROBATION: Final = 2  # tokens that a suspect must bring alone: as many as are in flight of one sequence


class _Record(Struct):
    """What is known of requests like one."""

    losses: int
    until: float
    convicted: bool = False


class Quarantine:
    """Suspects by number, and what is known by fingerprint. `secret` keys the fingerprints."""

    def __init__(self, secret: bytes) -> None:
        self.suspects: dict[int, Sequence] = {}
        self._probation: dict[int, int] = {}  # tokens that each has still to bring
        self._secret = secret
        self._records: dict[bytes, _Record] = {}  # the first to be forgotten comes first

    def able(self) -> list[Sequence]:
        """Those of which something may be computed now. Short ones go first, and lines of batches last."""
        able = [suspect for suspect in self.suspects.values() if _is_able(suspect)]
        return sorted(able, key=lambda one: (one.live.generate.background, one.remaining, one.id))

    def suspect(self, sequence: Sequence) -> None:
        """It is computed alone from now on, or still is."""
        self.suspects[sequence.id] = sequence
        self._probation[sequence.id] = PROBATION

    def survived(self, sequence: Sequence) -> None:
        """A step has computed its next token."""
        if sequence.id in self.suspects:
            self._probation[sequence.id] -= 1
            if self._probation[sequence.id]:
                return
            self.forget(sequence)
        self._records.pop(self._fingerprint(sequence.live), None)
        sequence.losses = 0

    def forget(self, sequence: Sequence) -> None:
        """It has ended, or is suspect no more; harmless for others."""
        if self.suspects.pop(sequence.id, None):
            del self._probation[sequence.id]

    def count_loss(self, lives: Iterable[LiveRequest], now: float) -> dict[str, int]:
        """A worker was lost that computed these, perhaps because of one; returns how many were in a row, by id."""
        fingerprints = {live.id: self._fingerprint(live) for live in lives}
        for fingerprint in dict.fromkeys(fingerprints.values()):
            self._note(fingerprint, now).losses += 1
        return {id: self._records[fingerprint].losses for id, fingerprint in fingerprints.items()}

    def convict(self, live: LiveRequest, now: float) -> None:
        """Refuse requests like this one for a while."""
        self._note(self._fingerprint(live), now).convicted = True

    def losses_of(self, live: LiveRequest, now: float) -> int | None:
        """How many workers in a row were lost with requests like this one; None if it is to be refused."""
        if not self._records:  # nearly always: a long prompt takes milliseconds to digest
            return 0
        self._forget_old(now)
        record = self._records.get(self._fingerprint(live))
        if record is None:
            return 0
        return None if record.convicted else record.losses

    def _note(self, fingerprint: bytes, now: float) -> _Record:
        """Its record, which is remembered from now on."""
        self._forget_old(now)
        record = self._records.pop(fingerprint, None) or _Record(losses=0, until=0.0)
        record.until = now + REMEMBERED_SECONDS
        self._records[fingerprint] = record
        if len(self._records) > MOST_REMEMBERED:
            del self._records[next(iter(self._records))]
        return record

    def _forget_old(self, now: float) -> None:
        for fingerprint, record in tuple(self._records.items()):
            if record.until > now:
                return
            del self._records[fingerprint]

    def _fingerprint(self, live: LiveRequest) -> bytes:
        """Of what is computed. Not the seed: most clients leave it to the server, which draws another for a retry."""
        generate = live.generate
        sampling = structs.replace(generate.sampling, seed=0)
        adapter = generate.adapter and generate.adapter.name
        what = (live.prompts, sampling, generate.grammar, adapter, generate.n, generate.beams, generate.pooled)
        return hashlib.blake2b(msgspec.msgpack.encode(what), key=self._secret, digest_size=16).digest()


def _is_able(suspect: Sequence) -> bool:
    """Whether there may be something to compute of it now. What has begun keeps its grammar and its adapter."""
    held_back = suspect.live.obstacle if suspect.place == "waiting" else suspect.live.credit <= 0
    return not held_back and not suspect.waits_for_beams and suspect.remaining > 0
