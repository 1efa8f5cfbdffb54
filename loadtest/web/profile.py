"""A sampling profiler for the server under test: shows where its CPU time goes without slowing it down.

A timer interrupts it 1,000 times a second and counts the stack of the main thread, unless it is idle. Unlike a tracing
profiler it adds nothing to function calls, so short functions do not look too expensive. The timer uses real time,
because Linux updates CPU-time timers only in ticks of 4 or 10 ms.
"""

import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

SAMPLE_SECONDS: Final = 0.001
_DEPTH: Final = 60
_IDLE: Final = "EpollIOManager.get_events"


@contextmanager
def profiling(path: Path | None) -> Generator[None]:
    """Profile the block and write the result; do nothing without a path."""
    if path is None:
        yield
        return
    own: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    stacks: Counter[str] = Counter()

    def sample(_signal: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None and len(names) < _DEPTH:
            names.append(_name(frame, line=not names))
            frame = frame.f_back
        if names and _IDLE not in names[0]:
            own[names[0]] += 1
            names[0] = names[0].rpartition(":")[0]
            inclusive.update(set(names))
            stacks[";".join(reversed(names))] += 1

    signal.signal(signal.SIGALRM, sample)
    signal.setitimer(signal.ITIMER_REAL, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        path.write_text(_report(own, inclusive))
        path.with_suffix(".collapsed").write_text("".join(f"{stack} {n}\n" for stack, n in stacks.most_common()))


def _name(frame: FrameType, *, line: bool) -> str:
    code = frame.f_code
    folder, file = code.co_filename.split("/")[-2:] if "/" in code.co_filename else ("", code.co_filename)
    name = f"{folder}/{file}:{code.co_qualname}"
    return f"{name}:{frame.f_lineno}" if line else name


def _report(own: Counter[str], inclusive: Counter[str]) -> str:
    total = max(1, own.total())
    lines = [f"{total} samples", "", "inclusive"]
    lines += [f"{n / total:7.1%}  {name}" for name, n in inclusive.most_common(90)]
    lines += ["", "own, by line"]
    lines += [f"{n / total:7.1%}  {name}" for name, n in own.most_common(90)]
    return "\n".join(lines) + "\n"
