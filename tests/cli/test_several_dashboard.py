"""Several web processes: whichever a dashboard is connected to shows all of them, and nobody asks when nobody looks."""

import os
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest
import trio
from trio_websocket import ConnectionClosed

from triolet.actors.fronts.answers import Answers
from triolet.actors.fronts.front_line import FrontLine
from triolet.protocol.engine_view import AboutEngine, DashboardError, View
from triolet.protocol.fronts import Inquiry

from ..web.watcher import Watcher, close_code, watching
from .test_several import SETTINGS, House, Stream, get, nothing_is_held, open_streams, running, until

CHOICES = 2
LASTING = {"max_tokens": 1800, "n": CHOICES}  # for many times what a test needs, on any machine
Asked = Counter[tuple[str, str]]  # front and question


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """How often each front has asked each question."""
    counts: Asked = Counter()
    reply = FrontLine._reply

    async def count(line: FrontLine, question: Inquiry) -> None:
        counts[line.name, question.question] += 1
        await reply(line, question)

    monkeypatch.setattr(FrontLine, "_reply", count)
    return counts


def by_front(asked: Asked, wanted: str) -> dict[str, int]:
    return {front: times for (front, question), times in asked.items() if question == wanted}


async def watch_every_front(house: House, asked: Asked, stack: AsyncExitStack) -> list[Watcher]:
    """The kernel chooses the front by the client's port."""
    watchers: list[Watcher] = []
    while len(watchers) < 4 or len(by_front(asked, "about")) < 2:
        watchers.append(await stack.enter_async_context(watching(house.url)))
        assert isinstance(await watchers[-1].hear(), AboutEngine)
    return watchers


def held(house: House, streams: list[Stream]) -> dict[str, int]:
    """How many rows each front holds, by the name of its place."""
    places = {name: line.label for name, line in house.fronts._lines.items()}
    return Counter(places[stream.front] for stream in streams for _ in range(CHOICES))


def tokens(view: View) -> dict[int, int]:
    return {row.sequence: row.generated for row in view.rows}


async def test_every_front_shows_all_of_them_and_misses_one_that_dies(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(SETTINGS) as house:
        before = await show_all(house, asked)
        await miss_one_that_dies(house, asked, before)
        await tell_who_gets_no_view_in_time_to_come_again(house, monkeypatch)


async def show_all(house: House, asked: Asked) -> int:
    """Every front does, and asks only for who looks. How many requests there were."""
    idle = (await get(house, "/internal/ledger")).json()["tasks"]
    async with trio.open_nursery() as nursery:
        streams = await open_streams(nursery, house, **LASTING)
        assert by_front(asked, "view") == {}
        async with AsyncExitStack() as stack:
            watchers = await watch_every_front(house, asked, stack)
            for watcher in watchers:
                view = await watcher.view()
                assert Counter(row.process for row in view.rows) == held(house, streams)
                assert view.live == len(streams)
                assert sum(view.first_token.counts) == len(streams)
                assert sum(view.between_tokens.counts) > len(streams)
                assert view.totals.accepted == len(streams)
                assert view.totals.text_seconds > 0
                assert view.web is not None
                assert (view.web.count, view.web.silent, view.web.restarts) == (2, 0, 0)
                later = await watcher.view()
                while not all(tokens(later)[one] > before for one, before in tokens(view).items()):
                    later = await watcher.view()
            seen = [await watcher.view() for _ in range(4) for watcher in watchers]
            assert len({view.time for view in seen}) < len(seen)  # most are of several
        nursery.cancel_scope.cancel()
    await until(nothing_is_held, house)
    await until(lambda ledger: bool(ledger["tasks"] <= idle), house)  # no task is left that could ask
    before = by_front(asked, "view")
    for _ in range(4):
        await get(house, "/internal/ledger")
    assert by_front(asked, "view") == before
    return len(streams)


async def goes_on(watcher: Watcher) -> View | None:
    """The next view; None where the connection has ended."""
    try:
        return await watcher.view()
    except ConnectionClosed:
        return None


async def miss_one_that_dies(house: House, asked: Asked, before: int) -> None:
    """It takes its watchers along; the others know what it had counted."""
    async with trio.open_nursery() as nursery:
        streams = await open_streams(nursery, house, **LASTING)
        doomed, place = streams[0].front, min(held(house, streams[:1]))
        async with AsyncExitStack() as stack:
            asked.clear()
            watchers = await watch_every_front(house, asked, stack)
            while sum((await watchers[0].view()).first_token.counts) < before + len(streams):
                pass  # a view from before these streams, which is still fresh: the doomed front has not told of them
            os.kill(house.fronts.pids[doomed], signal.SIGKILL)
            last: list[View] = []
            for watcher in watchers:
                view = await goes_on(watcher)
                while view and (view.web is None or (view.web.restarts, view.web.count) != (1, 2)):
                    view = await goes_on(watcher)
                last += [view] if view else []
        assert 0 < len(last) < len(watchers)
        for view in last:
            assert place not in {row.process for row in view.rows} | {row.process for row in view.queue}
            assert view.totals.accepted == sum(view.first_token.counts) == before + len(streams)  # of the dead one too
        nursery.cancel_scope.cancel()


async def tell_who_gets_no_view_in_time_to_come_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(answers: Answers) -> bytes:
        return await trio.sleep_forever()

    monkeypatch.setattr(Answers, "shared_view", never)
    async with watching(house.url) as watcher:
        while isinstance(frame := await watcher.hear(), AboutEngine | View):
            pass  # a view that this turn's earlier watchers have got
        assert isinstance(frame, DashboardError)
        assert frame.error.code == "engine_unavailable"
        with pytest.raises(ConnectionClosed) as closed:
            await watcher.hear()
        assert close_code(closed.value) == 1013
