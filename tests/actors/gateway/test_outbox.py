"""The outbox: order, one wake-up per step, the end, and cancellation that loses nothing."""

import random
from collections.abc import Callable

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from triolet.actors.gateway.outbox import Outbox
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


class Sunk:
    """A sink that keeps what it takes; text comes as what it stands for, behind the word `text`."""

    def __init__(self, wake_for: tuple[StreamEvent, ...] = (), raises: bool = False) -> None:
        self.all: list[tuple[object, ...]] = []
        self._wake_for = wake_for
        self._raises = raises

    def take_text(self, index: int, text: str, tokens: int) -> bool:
        return self._take("text", Token(id="r", index=index, text=text, tokens=tokens))

    def take(self, events: tuple[StreamEvent, ...]) -> bool:
        return self._take(*events)

    def _take(self, *taken: object) -> bool:
        if self._raises:
            raise ValueError
        self.all.append(taken)
        return taken != self._wake_for


async def test_a_waiting_readers_sink_takes_a_step_without_waking_it() -> None:
    taken: list[int] = []
    drained: list[tuple[StreamEvent, ...]] = []
    outbox = Outbox("r", taken.append)
    sink = Sunk(wake_for=(token("b"),))

    async def read() -> None:
        drained.append(await outbox.drain(sink))
        drained.append(await outbox.drain(sink))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert outbox.push(token("a", 2))
        assert outbox.push(token("c", 1))
        outbox.flush()
        assert (sink.all, taken, drained) == ([(token("a", 2), token("c", 1))], [3], [])
        assert outbox.push(token("b"))
        outbox.flush()  # the sink took it and wants its reader
        assert not outbox.push(token("d"))  # which is on its way, and takes this one itself
        outbox.flush()
        await wait_all_tasks_blocked()
        assert (drained, taken) == ([(token("d"),)], [3, 1, 1])
        assert not outbox.push(FINISHED)  # the end is the reader's
        outbox.flush()
    assert drained[1] == (FINISHED,)
    assert len(sink.all) == 2


async def test_text_goes_to_the_sink_as_it_is_and_joined() -> None:
    taken: list[int] = []
    outbox = Outbox("r", taken.append)
    sink = Sunk()
    drained: list[tuple[StreamEvent, ...]] = []

    async def read() -> None:
        drained.append(await outbox.drain(sink))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        for text in ("a", "", "b"):
            assert outbox.push_text(0, text, 1)
        assert outbox.tokens_waiting == 3
        outbox.flush()
        outbox.flush()  # of nothing
        assert (sink.all, taken) == ([("text", token("ab", 3))], [3])
        outbox.push_text(0, "c", 1)
        outbox.push_text(1, "d", 1)  # of another choice: both are events, in their order
        outbox.push_text(1, "e", 2)
        outbox.flush()
        other = Token(id="r", index=1, text="de", tokens=3)
        assert (sink.all[1:], taken) == ([(token("c"), other)], [3, 4])
        outbox.push_text(0, "f", 1)
        assert not outbox.push(FINISHED)
        with pytest.raises(AssertionError, match="after the terminal event"):
            outbox.push_text(0, "late", 1)
    assert drained == [(token("f"), FINISHED)]
    assert (taken, outbox.tokens_waiting) == ([3, 4, 1], 0)


async def test_text_wakes_a_reader_without_a_sink() -> None:
    outbox = Outbox("r", lambda taken: None)
    drained: list[tuple[StreamEvent, ...]] = []

    async def read() -> None:
        drained.append(await outbox.drain())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert not outbox.push_text(0, "a", 1)
        outbox.push(token("b"))
        outbox.push_text(0, "c", 1)
        outbox.flush()
    assert drained == [(token("a"), token("b"), token("c"))]


async def test_a_sink_that_raises_leaves_the_events_to_its_reader() -> None:
    outbox = Outbox("r", lambda taken: None)

    async def read() -> None:
        assert await outbox.drain(Sunk(raises=True)) == (token("a"),)
        assert await outbox.drain(Sunk(raises=True)) == (token("b"), token("c"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        outbox.push_text(0, "a", 1)
        outbox.flush()
        await wait_all_tasks_blocked()
        outbox.push(token("b"))
        outbox.push(token("c"))
        outbox.flush()


async def test_without_a_waiting_reader_nothing_is_sunk() -> None:
    outbox = Outbox("r", lambda taken: None)
    with trio.move_on_after(0):
        await outbox.drain(Sunk())
    assert not outbox.push(token("a"))
    outbox.flush()
    assert await outbox.drain() == (token("a"),)


@pytest.mark.parametrize("seed", range(12))
async def test_given_text_is_pushed_and_flushed_whatever_waits(seed: int) -> None:
    """Two outboxes hear the same; one is given its text, the other is pushed it and flushed."""
    rng = random.Random(seed)
    heard: list[list[tuple[str, object]]] = [[], []]

    class Rough:
        """Takes, wants its reader or raises, as the text says."""

        def __init__(self, log: list[tuple[str, object]]) -> None:
            self._log = log

        def take_text(self, index: int, text: str, tokens: int) -> bool:
            return self._take(Token(id="r", index=index, text=text, tokens=tokens))

        def take(self, events: tuple[StreamEvent, ...]) -> bool:
            return self._take(*events)

        def _take(self, *events: StreamEvent) -> bool:
            text = "".join(event.text for event in events if isinstance(event, Token))
            if "x" in text:
                raise ValueError
            self._log.append(("sunk", events))
            return "w" not in text

    def keep(log: list[tuple[str, object]]) -> Callable[[int], None]:
        return lambda tokens: log.append(("taken", tokens))

    async def read(outbox: Outbox, log: list[tuple[str, object]]) -> None:
        while not (events := await outbox.drain(Rough(log))) or events[-1] != FINISHED:
            log.append(("read", events))

    given, pushed = outboxes = [Outbox("r", keep(log)) for log in heard]
    async with trio.open_nursery() as nursery:
        for outbox, log in zip(outboxes, heard, strict=True):
            nursery.start_soon(read, outbox, log)
        for _ in range(300):
            match rng.randrange(8):
                case 0:
                    await wait_all_tasks_blocked()
                case 1:
                    for outbox in outboxes:
                        outbox.push(token("e"))
                case 2:
                    for outbox in outboxes:
                        outbox.push_text(0, "p", 1)
                case 3:
                    for outbox in outboxes:
                        outbox.flush()
                case _:
                    text = rng.choice("abcdwx")
                    given.give_text(0, text, 2)
                    if pushed.push_text(0, text, 2):
                        pushed.flush()
        for outbox in outboxes:
            outbox.push(FINISHED)
    assert heard[0] == heard[1]
    assert {kind for kind, _ in heard[0]} == {"sunk", "taken", "read"}
