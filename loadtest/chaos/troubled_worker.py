"""A real worker that prompts and signals can hang, break or kill.

A prompt that begins with one of these token ids is in trouble as soon as the third token of its answer is computed.
After SIGUSR1 the next step hangs, after SIGUSR2 it crashes, whoever is in it.
"""

import ctypes
import signal
import time
from functools import partial
from types import FrameType
from typing import Final, NoReturn

from ...actors.executor.worker import main
from ...models.cpu.stepper import CpuStepper
from ...models.stepper import PendingStep
from ...protocol.steps import Step

HANGS, RAISES, CRASHES = TROUBLES = 311, 312, 313
SIGNALS: Final = {signal.SIGUSR1: HANGS, signal.SIGUSR2: CRASHES}
AFTER: Final = 2  # tokens of its answer
MODULE: Final = "triolet.loadtest.chaos.troubled_worker"

_begin_step = CpuStepper.begin_step
_deadly: dict[int, tuple[int, int]] = {}  # by sequence: what happens, and behind how many tokens
_ordered: list[int] = []  # by a signal


def begin_step(self: CpuStepper, step: Step) -> PendingStep:
    for record in step.new:
        if record.tokens[0] in TROUBLES:
            _deadly[record.sequence] = record.tokens[0], record.prompt_tokens + AFTER
    for chunk in step.chunks:
        trouble, behind = _deadly.get(chunk.sequence, (0, 0))
        if trouble and chunk.start + chunk.count > behind:
            _fall_into(trouble)
    if _ordered:
        _fall_into(_ordered.pop())
    return _begin_step(self, step)


def _fall_into(trouble: int) -> NoReturn:
    if trouble == RAISES:
        raise ZeroDivisionError("a kernel divides by zero")
    if trouble == CRASHES:
        ctypes.string_at(0)
    while True:
        time.sleep(60)


def _order(trouble: int, _number: int, _frame: FrameType | None) -> None:
    _ordered.append(trouble)


if __name__ == "__main__":
    CpuStepper.begin_step = begin_step  # type: ignore[method-assign]  # it serves in trouble on purpose
    for number, meaning in SIGNALS.items():
        signal.signal(number, partial(_order, meaning))
    main()
