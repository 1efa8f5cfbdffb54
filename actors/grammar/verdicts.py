"""What became of the latest grammars, by their content. Pure."""

from collections import OrderedDict
from hashlib import sha256
from typing import Final

import msgspec

from ...protocol.grammars import GrammarAccepted, GrammarRefused, GrammarSource

Verdict = GrammarAccepted | GrammarRefused

MAX_BYTES: Final = 16 << 20  # of grammars, warnings and refusals, as text
MAX_VERDICTS: Final = 4096


class Verdicts:
    """A bounded cache; what was not asked for longest goes first. Refusals are kept too: clients repeat them."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_verdicts: int = MAX_VERDICTS) -> None:
        self._max_bytes = max_bytes
        self._max_verdicts = max_verdicts
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._bytes = 0

    def get(self, source: GrammarSource) -> Verdict | None:
        key = _key(source)
        if verdict := self._verdicts.get(key):
            self._verdicts.move_to_end(key)
        return verdict

    def keep(self, source: GrammarSource, verdict: Verdict) -> None:
        self._verdicts[_key(source)] = verdict
        self._bytes += _size(verdict)
        while self._bytes > self._max_bytes or len(self._verdicts) > self._max_verdicts:
            _, oldest = self._verdicts.popitem(last=False)
            self._bytes -= _size(oldest)


def _key(source: GrammarSource) -> bytes:
    return sha256(msgspec.msgpack.encode(msgspec.structs.replace(source, param=""))).digest()


def _size(verdict: Verdict) -> int:
    """Of its texts, in characters."""
    if isinstance(verdict, GrammarAccepted):
        return len(verdict.grammar) + sum(map(len, verdict.warnings))
    return len(verdict.message) + len(verdict.param) + len(verdict.place)
