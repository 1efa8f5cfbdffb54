"""What a web process asks the scheduler's process, one answer for all who ask the same at the same time."""

from collections.abc import Callable
from itertools import count
from typing import Final

import trio

from ...protocol.errors import ApiError
from ...protocol.fronts import Answer, Ask, Question

ASK_SECONDS: Final = 2.0  # for the whole server's figures; the scheduler's process gives each front one of them


class _Asked:
    """A question that waits for its answer."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting = 0  # who wait for it
        self.answered = trio.Event()
        self.body: bytes | None = None


class Questions:
    """Those under way."""

    def __init__(self, send: Callable[[Ask], None]) -> None:
        """`send` never waits."""
        self._send = send
        self._numbers = count(1)
        self._asked: dict[tuple[Question, str, str], _Asked] = {}

    async def ask(self, question: Question, id: str = "", tenant: str = "") -> bytes:
        """Raises ApiError (503) when no answer comes in time. Who asks the same meanwhile gets the same answer."""
        key = question, id, tenant
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked(next(self._numbers))
            self._send(Ask(number=asked.number, question=question, id=id, tenant=tenant))
        asked.waiting += 1
        try:
            with trio.move_on_after(ASK_SECONDS):
                await asked.answered.wait()
        finally:
            asked.waiting -= 1
            if not asked.waiting and self._asked.get(key) is asked:
                del self._asked[key]
        if asked.body is None:
            text = f"The scheduler's process did not answer within {ASK_SECONDS:g} s."
            raise ApiError("engine_unavailable", text, retry_after=2)
        return asked.body

    def take(self, answer: Answer) -> None:
        """For those who wait; none do when it came late. Who asks from now on asks anew, also where they all left."""
        for key, asked in self._asked.items():
            if asked.number == answer.number:
                asked.body = answer.body
                asked.answered.set()
                del self._asked[key]
                return
