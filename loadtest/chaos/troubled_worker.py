"""A real worker that some prompts hang, break or kill: `python -m triolet.loadtest.chaos.troubled_worker FD`.

A prompt that begins with one of these token ids is in trouble as soon as the third token of its answer is computed.
"""

import ctypes
import time
from typing import Final

from ...actors.executor.worker import main
from ...models.cpu.stepper import CpuStepper
from ...models.stepper import PendingStep
from ...protocol.steps import Step

HANGS, RAISES, CRASHES = TROUBLES = 311, 312, 313
AFTER: Final = 2  # tokens of its answer
MODULE: Final = "triolet.loadtest.chaos.troubled_worker"

_begin_step = CpuStepper.begin_step
_trouble: dict[int, tuple[int, int]] = {}  # by sequence: what happens, and behind how many tokens


def begin_step(stepper: CpuStepper, step: Step) -> PendingStep:
    for record in step.new:
        if record.tokens[0] in TROUBLES:
            _trouble[record.sequence] = record.tokens[0], record.prompt_tokens + AFTER
    for chunk in step.chunks:
        trouble, behind = _trouble.get(chunk.sequence, (0, 0))
        if not trouble or chunk.start + chunk.count <= behind:
            continue
        if trouble == RAISES:
            raise ZeroDivisionError("a kernel divides by zero")
        if trouble == CRASHES:
            ctypes.string_at(0)
        while True:
            time.sleep(60)
    return _begin_step(stepper, step)


if __name__ == "__main__":
    CpuStepper.begin_step = begin_step  # type: ignore[method-assign]  # it serves in trouble on purpose
    main()
