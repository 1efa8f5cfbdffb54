"""The scheduler actor: it carries messages and watches the time."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from triolet.actors.scheduler.scheduler import run_scheduler
from triolet.actors.scheduler.state import SchedulerState
from triolet.protocol.messages import (
    Cancel,
    Credit,
    DropRequest,
    OpenChoice,
    ToDetokenizer,
    ToScheduler,
)
from triolet.protocol.steps import GrammarReady, PrepareGrammar, Step

from .scheduling import admit, done, new_state, ready, text, whereabouts


@asynccontextmanager
async def acting(
    state: SchedulerState,
) -> AsyncGenerator[
    tuple[
        trio.MemorySendChannel[ToScheduler], trio.MemoryReceiveChannel[Step], trio.MemoryReceiveChannel[ToDetokenizer]
    ]
]:
    """The actor at its channels; the test is executor and detokenizer."""
    to_scheduler, inbox = trio.open_memory_channel[ToScheduler](float("inf"))
    to_worker, steps = trio.open_memory_channel[Any](float("inf"))  # WorkerOrder: without grammars, these are steps
    to_texts, texts = trio.open_memory_channel[ToDetokenizer](float("inf"))
    with steps, texts:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_scheduler, inbox, to_worker, to_texts, state=state))
            with to_scheduler:
                yield to_scheduler, steps, texts


async def test_the_actor_keeps_so_many_steps_in_flight_and_ends_with_its_inbox() -> None:
    async with acting(new_state(max_steps_in_flight=2)) as (scheduler, steps, texts):
        scheduler.send_nowait(ready())
        scheduler.send_nowait(admit("a", text(3)))
        await trio.testing.wait_all_tasks_blocked()
        first, second = steps.receive_nowait(), steps.receive_nowait()
        assert (first.step, second.step) == (1, 2)
        scheduler.send_nowait(done(first))
        assert (await steps.receive()).step == 3
        assert isinstance(await texts.receive(), OpenChoice)
        scheduler.send_nowait(Cancel(id="a"))
    # Leaving the block closed the inbox; the nursery waited for the actor's end.


async def test_a_grammar_goes_to_the_worker_before_the_steps_that_need_it() -> None:
    async with acting(new_state()) as (scheduler, steps, _):
        scheduler.send_nowait(ready())
        scheduler.send_nowait(admit("a", text(3), grammar="x"))
        order: object = await steps.receive()
        assert order == PrepareGrammar(grammar=1, text="x")
        scheduler.send_nowait(GrammarReady(grammar=1))
        step = await steps.receive()
        assert [record.grammar for record in step.new] == [1]


async def test_a_deadline_ends_a_request_wherever_it_is(autojump_clock: trio.testing.MockClock) -> None:
    state = new_state()
    async with acting(state) as (scheduler, _, texts):
        scheduler.send_nowait(ready(max_running=1))
        scheduler.send_nowait(admit("runs", text(3), deadline=20.0))
        scheduler.send_nowait(admit("waits", text(3, 50), deadline=10.0))
        assert isinstance(await texts.receive(), OpenChoice)
        assert await texts.receive() == DropRequest(id="waits", reason="deadline")
        assert trio.current_time() == 10.0
        assert await texts.receive() == DropRequest(id="runs", reason="deadline")
        assert trio.current_time() == 20.0
        assert state.statistics().blocks.owned == 0


async def test_a_reader_that_takes_nothing_for_so_long_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    state = new_state(outbox_tokens=1, stall_timeout=60.0)
    async with acting(state) as (scheduler, steps, texts):
        scheduler.send_nowait(ready())
        scheduler.send_nowait(admit("a", text(3)))
        scheduler.send_nowait(done(await steps.receive()))
        await trio.sleep(50)
        scheduler.send_nowait(Credit(id="a", tokens=1))  # slow, but it reads
        scheduler.send_nowait(done(await steps.receive()))
        messages = [await texts.receive() for _ in range(4)]
        assert messages[-1] == DropRequest(id="a", reason="stalled")
        assert trio.current_time() == 110.0


async def test_a_hanging_worker_does_not_make_a_stalled_reader(autojump_clock: trio.testing.MockClock) -> None:
    state = new_state(outbox_tokens=2, stall_timeout=60.0)
    async with acting(state) as (scheduler, steps, _):
        scheduler.send_nowait(ready())
        scheduler.send_nowait(admit("a", text(3)))
        scheduler.send_nowait(done(await steps.receive()))
        step = await steps.receive()
        await trio.sleep(600)
        scheduler.send_nowait(done(step))
        await trio.testing.wait_all_tasks_blocked()
        assert whereabouts(state, "a") == {0: "parked"}  # only now its reader has something to take


async def test_without_credit_no_token_is_generated(autojump_clock: trio.testing.MockClock) -> None:
    state = new_state(outbox_tokens=1)
    async with acting(state) as (scheduler, steps, _):
        scheduler.send_nowait(ready())
        scheduler.send_nowait(admit("a", text(3)))
        scheduler.send_nowait(done(await steps.receive()))
        await trio.testing.wait_all_tasks_blocked()
        assert whereabouts(state, "a") == {0: "parked"}
        scheduler.send_nowait(Credit(id="a", tokens=1))
        assert (await steps.receive()).chunks[0].sample
        await trio.testing.wait_all_tasks_blocked()
        assert steps.statistics().current_buffer_used == 0
