"""A worker process without a model, for measuring the rest of the server: it uses the link and follows a script.

`python -m triolet.loadtest.web.scripted_worker FD PACE TOKENS_PER_ROW`, as `start_scripted_worker` starts it. PACE is
the time of an answer. `at-once`: immediately. `in-turn`: when the next step (or the ping after the last one) has
arrived, so the front finds each answer ready and never two. A number: at the next beat of a clock of so many seconds.
A row has one token, or several as with speculation.

The front cannot tell it from a real worker. It has one thread, because it computes nothing that a second could overlap.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ...actors.executor.blocking_link import BlockingLink
from ...actors.supervisor.child_process import ChildProcess, start_worker
from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import LoadModel, MemoryPlan, Ping, Pong, Ready, Row, Step, StepDone, ToWorker
from .script import Script, key_of

BLOCKS: Final = 1 << 14  # in the imaginary KV cache: a million tokens
CONTEXT: Final = 1 << 16
_DECODER: Final = msgspec.msgpack.Decoder[ToWorker](ToWorker)


def start_scripted_worker(
    settings: EngineSettings, *, pace: str, tokens_per_row: int, cpu: int | None = None
) -> ChildProcess:
    """The process, as the supervisor holds it. `cpu` is the core it may use; None does not pin it."""
    process = start_worker(settings, "triolet.loadtest.web.scripted_worker", (pace, str(tokens_per_row)))
    if cpu is not None:
        os.sched_setaffinity(process.pid, {cpu})
    return process


class _Stream:
    """A sequence: its key in the script, and its position."""

    def __init__(self, key: int, said: int) -> None:
        self.key = key
        self.said = said


class _Beat:
    """Decides when answers are due."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = 0.0

    def wait(self) -> None:
        now = time.monotonic()
        self._due += self._seconds
        if self._due < now - self._seconds:  # idle, or the front is too slow: do not catch up
            self._due = now
        time.sleep(max(0.0, self._due - now))


def ready(settings: EngineSettings, script: Script) -> Ready:
    """What a real worker would report, with the requested limits."""
    step = settings.largest_step()
    return Ready(
        model="scripted",
        architecture="none",
        parameters=0,
        device="none",
        dtype="none",
        quantize="none",
        context_length=settings.max_model_len or CONTEXT,
        vocab_size=script.vocab_size,
        eos_token_ids=(),
        max_step_tokens=step.max_step_tokens,
        max_running=step.max_running,
        memory=MemoryPlan(
            weights_bytes=0,
            workspace_bytes=0,
            kv_bytes=0,
            num_blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            sequences_at_full_length=BLOCKS * BLOCK_SIZE / CONTEXT,
        ),
        sampling_defaults={},
        versions={},
        pid=os.getpid(),
    )


def run(step: Step, streams: dict[int, _Stream], script: Script, tokens_per_row: int) -> StepDone:
    for sequence in step.dropped:
        streams.pop(sequence, None)
    for record in step.new:
        prompt = record.tokens[: record.prompt_tokens]
        streams[record.sequence] = _Stream(key_of(prompt), len(record.tokens) - len(prompt))
    rows: list[Row] = []
    for chunk in step.chunks:
        tokens: tuple[int, ...] = ()
        if chunk.sample:
            stream = streams[chunk.sequence]
            tokens = script.tokens(stream.key, stream.said, tokens_per_row)
            stream.said += tokens_per_row
        rows.append(Row(sequence=chunk.sequence, tokens=tokens))
    return StepDone(step=step.step, rows=tuple(rows), duration=0.0, model_duration=0.0)


def pacing(pace: str, link: BlockingLink[ToWorker]) -> Callable[[], object]:
    """The answers that wait until they are due."""
    if pace == "at-once":
        return lambda: None
    if pace == "in-turn":
        return link.wait
    return _Beat(float(pace)).wait


def serve(link: BlockingLink[ToWorker], pace: str, tokens_per_row: int) -> None:
    """Run until the front is gone."""
    wait = pacing(pace, link)
    load = link.receive()
    assert isinstance(load, LoadModel), f"the first message is {type(load).__name__}, not LoadModel"
    script = Script(Path(load.settings.model))
    link.send(ready(load.settings, script))
    streams: dict[int, _Stream] = {}
    while True:
        message = link.receive()
        if isinstance(message, Step):
            done = run(message, streams, script, tokens_per_row)
            wait()
            link.send(done)
        elif isinstance(message, Ping):
            link.send(Pong())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the front drains first, then ends the worker
    fd, pace, tokens_per_row = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with suppress(EOFError, OSError):  # the front is gone
        serve(BlockingLink(socket.socket(fileno=fd), _DECODER), pace, tokens_per_row)


if __name__ == "__main__":
    main()
