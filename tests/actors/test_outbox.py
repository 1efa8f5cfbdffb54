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
