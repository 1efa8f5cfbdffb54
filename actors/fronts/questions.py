"""Questions from one process to another over their link; tasks that ask the same at the same time share one answer."""

from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

import msgspec
import trio

from ...protocol.adapters import Adapter
from ...protocol.fronts import Inquiry, InquiryAnswer, Question

NOTHING: Final = msgspec.msgpack.encode(None)  # the answer if there is nothing to say


class _Key(NamedTuple):
    question: Question
    id: str
    tenant: str
    adapter: Adapter | None


class _Pending:
    """A question without an answer yet."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.waiting = 0  # tasks that wait for it
        self.answered = trio.Event()
        self.body: bytes | None = None


class Questions:
    """The open questions."""

    def __init__(self, send: Callable[[Inquiry], None], seconds: float) -> None:
        """`send` never waits; `seconds` is the longest wait for an answer."""
        self._send = send
        self._seconds = seconds
        self._numbers = count(1)
        self._pending: dict[int, _Pending] = {}  # until the answer comes, in time or late
        self._joinable: dict[_Key, _Pending] = {}  # those of them that tasks wait for

    async def ask(
        self, question: Question, id: str = "", tenant: str = "", adapter: Adapter | None = None
    ) -> bytes | None:
        """The answer, or None if none comes in time. Tasks that ask the same meanwhile share it."""
        key = _Key(question, id, tenant, adapter)
        pending = self._joinable.get(key)
        if pending is None:
            number = next(self._numbers)
            pending = self._pending[number] = self._joinable[key] = _Pending(key)
            self._send(Inquiry(number=number, question=question, id=id, tenant=tenant, adapter=adapter))
        pending.waiting += 1
        try:
            with trio.move_on_after(self._seconds):
                await pending.answered.wait()
        finally:
            pending.waiting -= 1
            if not pending.waiting:
                self._close(pending)
        return pending.body

    def take_answer(self, answer: InquiryAnswer) -> Question | None:
        """Wake the waiting tasks and return the question, also of a late answer that wakes nobody.

        Later calls of `ask` send a new question.
        """
        pending = self._pending.pop(answer.number, None)
        if pending is None:
            return None
        pending.body = answer.body
        pending.answered.set()
        self._close(pending)
        return pending.key.question

    def _close(self, pending: _Pending) -> None:
        """Let no further task join it."""
        if self._joinable.get(pending.key) is pending:
            del self._joinable[pending.key]
