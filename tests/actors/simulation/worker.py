"""A worker process and its supervisor: steps in order, random durations, sudden deaths, restarts."""

import random

import trio

from triolet.protocol.messages import EngineFailed, ToScheduler, WorkerLost, WorkerReady
from triolet.protocol.steps import (
    AdapterFailed,
    AdapterReady,
    ForgetAdapters,
    GrammarFailed,
    GrammarReady,
    MemoryPlan,
    PrepareAdapter,
    PrepareGrammar,
    Ready,
    Step,
    StepFailed,
    WorkerOrder,
)

from .device import EOS, VOCABULARY, FakeDevice
from .scenario import Log, Scenario


def ready(scenario: Scenario) -> Ready:
    plan = MemoryPlan(
        weights_bytes=0,
        workspace_bytes=0,
        kv_bytes=0,
        num_blocks=scenario.num_blocks,
        block_size=64,
        sequences_at_full_length=1.0,
    )
    return Ready(
        model="fake",
        architecture="fake",
        parameters=0,
        device="cpu",
        dtype="float32",
        quantize="none",
        context_length=scenario.context_length,
        vocab_size=VOCABULARY,
        eos_token_ids=(EOS,),
        max_step_tokens=scenario.max_step_tokens,
        max_running=scenario.max_running,
        memory=plan,
        sampling_defaults={},
        versions={},
        pid=1,
    )


class Supervised:
    """The worker of the moment; `device` is None while there is none."""

    def __init__(self, scenario: Scenario, rng: random.Random, log: Log) -> None:
        self.device: FakeDevice | None = None
        self.steps = 0
        self._scenario = scenario
        self._rng = rng
        self._log = log

    async def run(
        self, steps: trio.MemoryReceiveChannel[WorkerOrder], scheduler: trio.MemorySendChannel[ToScheduler]
    ) -> None:
        scenario, rng = self._scenario, self._rng
        deaths = 0
        with steps, scheduler:
            while True:
                with trio.move_on_after(rng.uniform(0, 1)):  # loading
                    async for _ in steps:  # for the worker that died; the scheduler may still wait to send some
                        pass
                self.device = FakeDevice(
                    num_blocks=scenario.num_blocks,
                    max_step_tokens=scenario.max_step_tokens,
                    max_running=scenario.max_running,
                    poisoned=lambda: rng.random() < scenario.poison_rate,
                )
                scheduler.send_nowait(WorkerReady(ready=ready(scenario)))
                async with trio.open_nursery() as nursery:
                    died = await self._serve(self.device, steps, scheduler, nursery)
                    nursery.cancel_scope.cancel()
                if not died:
                    return
                self.device = None
                deaths += 1
                if deaths == scenario.max_deaths:
                    scheduler.send_nowait(EngineFailed(reason="it died too often"))
                    return
                await trio.sleep(rng.uniform(0, 0.2))

    async def _build(
        self,
        device: FakeDevice,
        orders: trio.MemoryReceiveChannel[PrepareGrammar],
        scheduler: trio.MemorySendChannel[ToScheduler],
    ) -> None:
        """One grammar after another, as the worker's thread does."""
        async for order in orders:
            device.grammars -= set(order.forget)
            await trio.sleep(self._rng.uniform(0, 0.1))
            if self._rng.random() < self._scenario.poison_rate * 10:
                scheduler.send_nowait(GrammarFailed(grammar=order.grammar, message="planned"))
                continue
            device.prepare(order)
            scheduler.send_nowait(GrammarReady(grammar=order.grammar))

    async def _read(
        self, device: FakeDevice, order: PrepareAdapter, scheduler: trio.MemorySendChannel[ToScheduler]
    ) -> None:
        await trio.sleep(self._rng.uniform(0, 0.05))
        if self._rng.random() < self._scenario.poison_rate * 10:
            scheduler.send_nowait(AdapterFailed(adapter=order.adapter, message="planned"))
        elif order.adapter in device.reading:  # it was not forgotten meanwhile
            device.prepare(order)
            scheduler.send_nowait(AdapterReady(adapter=order.adapter))

    async def _serve(
        self,
        device: FakeDevice,
        steps: trio.MemoryReceiveChannel[WorkerOrder],
        scheduler: trio.MemorySendChannel[ToScheduler],
        nursery: trio.Nursery,
    ) -> bool:
        """Run steps until the worker dies (True) or the scheduler is gone (False)."""
        rng = self._rng
        to_builder, orders = trio.open_memory_channel[PrepareGrammar](float("inf"))
        nursery.start_soon(self._build, device, orders, scheduler)
        async for step in steps:
            if not isinstance(step, Step):
                if rng.random() < self._scenario.death_rate:
                    scheduler.send_nowait(WorkerLost(reason="planned", crashed=rng.random() < 0.5))
                    return True
                match step:
                    case PrepareGrammar():
                        to_builder.send_nowait(step)
                    case PrepareAdapter():
                        device.reading.add(step.adapter)
                        nursery.start_soon(self._read, device, step, scheduler)
                    case ForgetAdapters():
                        device.prepare(step)
                continue
            self._log.append((round(trio.current_time(), 9), step))
            duration = rng.uniform(0.001, 0.02)
            await trio.sleep(duration)
            self.steps += 1
            if rng.random() >= self._scenario.death_rate:
                scheduler.send_nowait(device.apply(step, duration))
                continue
            match rng.randrange(4):
                case 0:  # says so before it exits
                    scheduler.send_nowait(StepFailed(step=step.step, message="planned"))
                    await trio.sleep(rng.uniform(0, 0.1))
                case 1:  # dies after the step; its answer is read after the news of its death
                    done = device.apply(step, duration)
                    scheduler.send_nowait(WorkerLost(reason="planned", crashed=True))
                    scheduler.send_nowait(done)
                    return True
                case 2:  # dies with its answer in the pipe
                    device.apply(step, duration)
                case _:  # dies within the step
                    pass
            scheduler.send_nowait(WorkerLost(reason="planned", crashed=rng.random() < 0.5))
            return True
        return False
