"""The outbox: order, one wake-up per step, the end, and cancellation that loses nothing."""

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
import trio
from msgspec import structs
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from triolet.actors.gateway.outbox import Outbox
from triolet.protocol.events import Finished, Started, StreamEvent, Token, Usage


def token(text: str, tokens: int = 1) -> Token:
    return Token(id="r", index=0, text=text, tokens=tokens)


STARTED = Started(id="r", model="m", prompt_tokens=2)
FINISHED = Finished(id="r", reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=1))


async def test_drain_takes_everything_and_reports_the_tokens_taken() -> None:
    taken: list[int] = []
    outbox = Outbox("r", taken.append)
    events: list[StreamEvent] = [STARTED, token("a"), token("b", 3), FINISHED]
    for event in events:
        outbox.put(event)
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
            outbox.put(token(text))
        await wait_all_tasks_blocked()
        assert not drained  # the step may go on
        outbox.flush()
    assert [len(events) for events in drained] == [3]


async def test_a_cancelled_drain_takes_nothing() -> None:
    taken: list[int] = []
    outbox = Outbox("r", taken.append)
    outbox.put(token("a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await outbox.drain()
    assert scope.cancelled_caught
    assert taken == []
    assert await outbox.drain() == (token("a"),)


async def test_nothing_follows_the_terminal_event() -> None:
    outbox = Outbox("r", lambda taken: None)
    outbox.put(FINISHED)
    with pytest.raises(AssertionError, match="after the terminal event"):
        outbox.put(token("late"))


class Sunk:
    """A sink that keeps what it is given, its text as a Token behind the word `text`."""

    def __init__(self, wake_for: tuple[object, ...] = (), raises: bool = False) -> None:
        self.all: list[tuple[object, ...]] = []
        self._wake_for = wake_for
        self._raises = raises

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        if self._raises:
            raise ValueError
        said = ("text", Token(id="r", index=index, text=text, tokens=tokens)) if tokens else ()
        self.all.append((*events, *said))
        return self.all[-1] != self._wake_for


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
        outbox.put(token("a", 2))
        outbox.put(token("c", 1))
        outbox.flush()
        assert (sink.all, taken, drained) == ([(token("a", 2), token("c", 1))], [3], [])
        outbox.put(token("b"))
        outbox.flush()  # the sink took it and wants its reader
        outbox.put(token("d"))
        outbox.flush()  # which is on its way, and takes this one itself
        await wait_all_tasks_blocked()
        assert (drained, taken) == ([(token("d"),)], [3, 1, 1])
        outbox.put(FINISHED)
        outbox.flush()  # the end is the reader's
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
            outbox.put_text(0, text, 1)
        assert outbox.tokens_waiting == 3
        outbox.flush()
        outbox.flush()  # of nothing
        assert (sink.all, taken) == ([("text", token("ab", 3))], [3])
        outbox.put_text(0, "c", 1)
        outbox.put_text(1, "d", 1)  # of another choice, behind what is now an event
        outbox.put_text(1, "e", 2)
        outbox.flush()
        other = Token(id="r", index=1, text="de", tokens=3)
        assert (sink.all[1:], taken) == ([(token("c"), "text", other)], [3, 4])
        outbox.put_text(0, "f", 1)
        outbox.put(FINISHED)
        with pytest.raises(AssertionError, match="after the terminal event"):
            outbox.put_text(0, "late", 1)
        outbox.flush()
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
        outbox.put_text(0, "a", 1)
        outbox.put(token("b"))
        outbox.put_text(0, "c", 1)
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
        outbox.put_text(0, "a", 1)
        outbox.flush()
        await wait_all_tasks_blocked()
        outbox.put(token("b"))
        outbox.put(token("c"))
        outbox.flush()


async def test_without_a_waiting_reader_nothing_is_sunk() -> None:
    outbox = Outbox("r", lambda taken: None)
    with trio.move_on_after(0):
        await outbox.drain(Sunk())
    outbox.put(token("a"))
    outbox.flush()
    assert await outbox.drain() == (token("a"),)


def joined(events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """Neighbouring texts of one choice as one."""
    result: list[StreamEvent] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Token) and isinstance(last, Token) and last.index == event.index:
            result[-1] = structs.replace(last, text=last.text + event.text, tokens=last.tokens + event.tokens)
        else:
            result.append(event)
    return result


@pytest.mark.parametrize("seed", range(20))
async def test_text_says_what_tokens_would(seed: int) -> None:
    """Two outboxes hear the same, one as text where it can: sinks, readers and accounts get the same at each flush."""
    rng = random.Random(seed)
    heard: list[list[tuple[str, object]]] = [[], []]

    class Rough:
        """Takes, wants its reader or raises, as the text says."""

        def __init__(self, log: list[tuple[str, object]]) -> None:
            self._log = log

        def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
            behind = [Token(id="r", index=index, text=text, tokens=tokens)] if tokens else []
            said = joined((*events, *behind))
            whole = "".join(event.text for event in said if isinstance(event, Token))
            if "x" in whole:
                raise ValueError
            self._log.append(("sunk", said))
            return "w" not in whole

    def keep(log: list[tuple[str, object]]) -> Callable[[int], None]:
        return lambda tokens: log.append(("taken", tokens))

    async def read(outbox: Outbox, log: list[tuple[str, object]]) -> None:
        while not (events := await outbox.drain(Rough(log))) or events[-1] != FINISHED:
            log.append(("read", joined(events)))

    as_text, as_tokens = outboxes = [Outbox("r", keep(log)) for log in heard]
    async with trio.open_nursery() as nursery:
        for outbox, log in zip(outboxes, heard, strict=True):
            nursery.start_soon(read, outbox, log)
        for _ in range(300):
            match rng.randrange(8):
                case 0:
                    await wait_all_tasks_blocked()
                case 1:
                    for outbox in outboxes:
                        outbox.put(STARTED)
                case 2 | 3:
                    for outbox in outboxes:
                        outbox.flush()
                case _:
                    text, index = rng.choice("abcdwx"), rng.choice((0, 0, 0, 1))
                    as_text.put_text(index, text, 2)
                    as_tokens.put(Token(id="r", index=index, text=text, tokens=2))
            assert as_text.tokens_waiting == as_tokens.tokens_waiting
        for outbox in outboxes:
            outbox.put(FINISHED)
            outbox.flush()
    assert heard[0] == heard[1]
    assert {kind for kind, _ in heard[0]} == {"sunk", "taken", "read"}
