"""What one process asks another over their link, one answer for all who ask the same at the same time."""

from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

import msgspec
import trio

from ...protocol.fronts import Answer, Ask, Question

NOTHING: Final = msgspec.msgpack.encode(None)  # the answer where there is none to give


class _Key(NamedTuple):
    question: Question
    id: str
    tenant: str


class _Pending:
    """A question without an answer."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.waiting = 0  # who wait for it
        self.answered = trio.Event()
        self.body: bytes | None = None


class Questions:
    """Those under way."""

    def __init__(self, send: Callable[[Ask], None], seconds: float) -> None:
        """`send` never waits; `seconds` is how long an answer is waited for."""
        self._send = send
        self._seconds = seconds
        self._numbers = count(1)
        self._pending: dict[int, _Pending] = {}  # until the answer comes, in time or not
        self._joinable: dict[_Key, _Pending] = {}  # of those, what somebody waits for

    async def ask(self, question: Question, id: str = "", tenant: str = "") -> bytes | None:
        """The answer; None when none comes in time. Who asks the same meanwhile gets the same one."""
        key = _Key(question, id, tenant)
        pending = self._joinable.get(key)
        if pending is None:
            number = next(self._numbers)
            pending = self._pending[number] = self._joinable[key] = _Pending(key)
            self._send(Ask(number=number, question=question, id=id, tenant=tenant))
        pending.waiting += 1
        try:
            with trio.move_on_after(self._seconds):
                await pending.answered.wait()
        finally:
            pending.waiting -= 1
            if not pending.waiting:
                self._close(pending)
        return pending.body

    def take_answer(self, answer: Answer) -> Question | None:
        """Wake those who wait, and say what was asked; also of an answer that came late and wakes nobody.

        Who asks from now on asks anew, also where they all left.
        """
        pending = self._pending.pop(answer.number, None)
        if pending is None:
            return None
        pending.body = answer.body
        pending.answered.set()
        self._close(pending)
        return pending.key.question

    def _close(self, pending: _Pending) -> None:
        """Nobody joins it any more."""
        if self._joinable.get(pending.key) is pending:
            del self._joinable[pending.key]
