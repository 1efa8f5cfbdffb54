"""A worker process without a process: the real frames over a stream in memory, a fake device, and every way to fail.

It dies loading, between two messages, within a step or with its answer in the pipe; it says why or not; it raises,
hangs in a step, is stopped and goes on or not, and writes bytes that are no message. `standing` is the truth that the
server's health is held against.
"""

import random
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import trio

from triolet.actors.supervisor.link import Link
from triolet.protocol.steps import (
    AdapterReady,
    ForgetAdapters,
    GrammarReady,
    LoadFailed,
    LoadModel,
    LoadProgress,
    Ping,
    Pong,
    PrepareAdapter,
    PrepareGrammar,
    Ready,
    Step,
    StepDone,
    StepFailed,
    ToWorker,
)

from ...actors.simulation.device import FakeDevice
from .kernel import stream_pair

_DECODER: Final = msgspec.msgpack.Decoder[ToWorker](ToWorker)
Standing = Literal["loading", "well", "stopped", "hung", "gone"]
Log = Callable[[object], None]


class SimulatedProcess:
    """In the place of a `ChildProcess`: its pid and status, its end of the link, `end` and `kill`."""

    def __init__(
        self, pid: int, ready: Ready, device: FakeDevice, faults: float, rng: random.Random, log: Log, *, first: bool
    ) -> None:
        self.pid = pid
        self.stream, self._theirs = stream_pair()
        self.status = 0
        self.standing: Standing = "loading"
        self.since = trio.current_time()
        self.longest = 0.0  # of its steps
        self.device = device
        self.sampled = 0
        self._ready = ready
        self._faults = faults
        self._rng = rng
        self._log = log
        self._first = first
        self._scope = trio.CancelScope()
        self._exited = trio.Event()
        self._thawed = trio.Event()
        self._thawed.set()

    def kill(self) -> None:
        if not self._exited.is_set():
            self.status = -9
        self._scope.cancel()

    async def end(self, grace: float = 0.2) -> str:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self.stream)
            with trio.move_on_after(grace):
                await self._exited.wait()
            self.kill()
            await self._exited.wait()
        return f"the worker process ended with {self.status}"

    def stand(self, standing: Standing) -> None:
        self.standing, self.since = standing, trio.current_time()

    async def run(self) -> None:
        link = Link(self._theirs, _DECODER)  # type: ignore[arg-type]  # what it uses of a stream
        with self._scope:
            try:
                await self._live(link)
            except* (_Exit, trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it ends, or the front is gone
        self.stand("gone")
        self._exited.set()
        await trio.aclose_forcefully(self._theirs)

    async def _live(self, link: Link[ToWorker]) -> None:
        rng = self._rng
        for done in range(rng.randrange(1, 4)):
            await link.send(LoadProgress(stage="weights", done=done, total=3))
            await trio.sleep(rng.uniform(0, 0.5))
            if not self._first and rng.random() < self._faults * 10:
                if rng.random() < 0.5:
                    self.status = 1
                    await link.send(LoadFailed(code="internal_error", message="planned"))
                    await trio.sleep(rng.uniform(0, 0.1))
                return
        self.stand("well")
        await link.send(self._ready)
        to_device, steps = trio.open_memory_channel[Step](float("inf"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._compute, link, steps)
            await self._read(link, to_device)
            nursery.cancel_scope.cancel()

    async def _read(self, link: Link[ToWorker], to_device: trio.MemorySendChannel[Step]) -> None:
        while True:
            try:
                message = await link.receive()
            except trio.EndOfChannel:
                return
            await self._thawed.wait()
            match message:
                case Step():
                    to_device.send_nowait(message)
                case Ping():
                    await link.send(Pong(progress=0 if self.standing == "hung" else int(trio.current_time() * 10)))
                case PrepareGrammar(grammar=number):
                    self.device.prepare(message)
                    await link.send(GrammarReady(grammar=number))
                case PrepareAdapter(adapter=number):
                    self.device.reading.add(number)
                    self.device.prepare(message)
                    await link.send(AdapterReady(adapter=number))
                case ForgetAdapters():
                    self.device.prepare(message)
                case LoadModel():
                    raise AssertionError("a second LoadModel")

    async def _compute(self, link: Link[ToWorker], steps: trio.MemoryReceiveChannel[Step]) -> None:
        rng = self._rng
        async for step in steps:
            self._log(step)
            seconds = rng.uniform(0.005, 0.05) if rng.random() > 0.003 else rng.uniform(1, 6)  # a long prefill
            await trio.sleep(seconds)
            await self._thawed.wait()
            if rng.random() < self._faults:
                await self._fail(link, step, seconds)
            self.longest = max(self.longest, seconds)
            await link.send(self._applied(step, seconds))

    def _applied(self, step: Step, seconds: float) -> StepDone:
        done = self.device.apply(step, seconds)
        self.sampled += sum(len(row.tokens) for row in done.rows)
        return done

    async def _fail(self, link: Link[ToWorker], step: Step, seconds: float) -> None:
        """Returns only if it was no more than a pause."""
        rng = self._rng
        match rng.choice(("raise", "die", "die later", "hang", "stop", "pause", "babble")):
            case "raise":
                self.status = 2
                await link.send(StepFailed(step=step.step, message="planned"))
                await trio.sleep(rng.uniform(0, 0.1))
            case "die":
                self.status = rng.choice((-9, -11))
            case "die later":
                self.status = rng.choice((-9, -11))
                await link.send(self._applied(step, seconds))
            case "hang":
                self.stand("hung")
                await trio.sleep_forever()
            case "stop":
                self._stop()
                await trio.sleep_forever()
            case "pause":
                self._stop()
                await trio.sleep(rng.uniform(0.1, 10))
                self._thawed.set()
                self.stand("well")
                return
            case _:
                self.status = 1
                await self._theirs.send_all(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40))))
                await trio.sleep(rng.uniform(0, 1))
        raise _Exit

    def _stop(self) -> None:
        self._thawed = trio.Event()
        self.stand("stopped")


class _Exit(Exception):
    """The process ends."""
