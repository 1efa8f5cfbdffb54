"""The outbox: order, one wake-up per step, the end, and cancellation that loses nothing."""

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from triolet.actors.outbox import Outbox
from triolet.protocol.events import Finished, Started, StreamEvent, Token, Usage


def token(text: str, tokens: int = 1) -> Token:
    return Token(id="r", index=0, text=text, tokens=tokens)


FINISHED = Finished(id="r", reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=1))


async def test_drain_takes_everything_and_reports_the_tokens_taken() -> None:
    taken: list[int] = []
    outbox = Outbox("r", taken.append)
    events: list[StreamEvent] = [Started(id="r", model="m", prompt_tokens=2), token("a"), token("b", 3), FINISHED]
    for event in events:
        outbox.push(event)
    with assert_checkpoints():
        assert await outbox.drain() == tuple(events)
    assert taken == [4]
    with pytest.raises(trio.EndOfChannel):
        await outbox.drain()


async def test_a_waiting_reader_is_woken_once_for_a_whole_step() -> None:
    outbox = Outbox("r", lambda taken: None)
    drained: list[tuple[StreamEvent, ...]] = []

    async def read() -> None:
        drained.append(await outbox.drain())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        for text in "abc":
            outbox.push(token(text))
    assert [len(events) for events in drained] == [3]


async def test_a_cancelled_drain_takes_nothing() -> None:
    taken: list[int] = []
    outbox = Outbox("r", taken.append)
    outbox.push(token("a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await outbox.drain()
    assert scope.cancelled_caught
    assert taken == []
    assert await outbox.drain() == (token("a"),)


async def test_nothing_follows_the_terminal_event() -> None:
    outbox = Outbox("r", lambda taken: None)
    outbox.push(FINISHED)
    with pytest.raises(AssertionError, match="after the terminal event"):
        outbox.push(token("late"))


async def test_a_waiting_readers_sink_takes_a_step_without_waking_it() -> None:
    taken: list[int] = []
    sunk: list[tuple[StreamEvent, ...]] = []
    drained: list[tuple[StreamEvent, ...]] = []
    outbox = Outbox("r", taken.append)

    def sink(events: tuple[StreamEvent, ...]) -> bool:
        sunk.append(events)
        return events != (token("b"),)

    async def read() -> None:
        drained.append(await outbox.drain(sink))
        drained.append(await outbox.drain(sink))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert outbox.push(token("a", 2))
        assert outbox.push(token("c", 1))
        outbox.flush()
        assert (sunk, taken, drained) == ([(token("a", 2), token("c", 1))], [3], [])
        assert outbox.push(token("b"))
        outbox.flush()  # the sink took it and wants its reader
        assert not outbox.push(token("d"))  # which is on its way, and takes this one itself
        outbox.flush()
        await wait_all_tasks_blocked()
        assert (drained, taken) == ([(token("d"),)], [3, 1, 1])
        assert not outbox.push(FINISHED)  # the end is the reader's
        outbox.flush()
    assert drained[1] == (FINISHED,)
    assert len(sunk) == 2


async def test_a_sink_that_raises_leaves_the_events_to_its_reader() -> None:
    outbox = Outbox("r", lambda taken: None)

    def sink(events: tuple[StreamEvent, ...]) -> bool:
        raise ValueError

    async def read() -> None:
        assert await outbox.drain(sink) == (token("a"),)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        outbox.push(token("a"))
        outbox.flush()


async def test_without_a_waiting_reader_nothing_is_sunk() -> None:
    outbox = Outbox("r", lambda taken: None)
    with trio.move_on_after(0):
        await outbox.drain(lambda events: True)
    assert not outbox.push(token("a"))
    outbox.flush()
    assert await outbox.drain() == (token("a"),)
