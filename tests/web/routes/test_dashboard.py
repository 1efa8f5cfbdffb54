"""GET /v1/dashboard on a real engine with the bundled model: views while somebody watches, one for all of them."""

import json
from collections.abc import AsyncGenerator
from functools import partial
from typing import NamedTuple

import httpx
import msgspec
import pytest
import trio
from trio_websocket import ConnectionClosed

from triolet.actors.engine import Engine
from triolet.actors.observe.observe import own_figures
from triolet.protocol.engine_view import VIEW_SECONDS, AboutEngine, DashboardError, View
from triolet.protocol.requests import TokenPrompt
from triolet.protocol.settings import LimitSettings, ServeSettings
from triolet.web.app import create_app
from triolet.web.routes import dashboard
from triolet.web.transport.transport import serve

from ...actors.engine_house import running, settings_for, submit, until, until_balanced
from ..watcher import close_code, watching

SOON = 60.0  # a hang becomes a failure
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class House(NamedTuple):
    engine: Engine
    url: str
    stop: trio.Event


@pytest.fixture
def settings() -> ServeSettings:
    limits = LimitSettings(outbox_tokens=10_000)  # more than any answer has: nobody reads them, and none is parked
    return settings_for(inline=True, max_running=2, kv_cache_memory=16 << 20, limits=limits)


@pytest.fixture
async def house(settings: ServeSettings) -> AsyncGenerator[House, None]:
    async with running(settings) as engine, trio.open_nursery() as nursery:
        stop = trio.Event()
        run = partial(serve, create_app(engine), host="127.0.0.1", port=0, drain_timeout=5, shutdown_trigger=stop.wait)
        urls: list[str] = await nursery.start(run)
        with trio.fail_after(SOON):
            yield House(engine, urls[0], stop)
        nursery.cancel_scope.cancel()


def long_request(engine: Engine, first_token: int) -> str:
    prompt = TokenPrompt(token_ids=tuple(range(first_token, first_token + 100)))
    return submit(engine, prompt, max_tokens=1900, ignore_eos=True).id


async def test_rows_grow_own_blocks_and_leave_while_others_wait_with_a_reason(house: House) -> None:
    ids = [long_request(house.engine, 300 + 100 * number) for number in range(4)]
    async with watching(house.url) as watcher:
        about = await watcher.hear()
        assert isinstance(about, AboutEngine)
        assert (about.limits.max_running, about.memory.block_size) == (2, 64)
        assert about.memory.num_blocks == house.engine.scheduler_statistics().blocks.total
        view = await watcher.view()
        while not (view.rows and all(row.generated for row in view.rows) and view.queue):
            view = await watcher.view()
        early = {row.sequence: row.generated for row in view.rows}
        assert [*(row.id for row in view.rows), *(row.id for row in view.queue)] == [
            id.rpartition("-")[2] for id in ids
        ]
        assert [row.blocked for row in view.queue] == ["rows", "order"]
        assert (view.running, view.waiting, view.live) == (2, 2, 4)
        later = await watcher.view()
        while any(row.generated <= early[row.sequence] for row in later.rows if row.sequence in early):
            later = await watcher.view()
        owners = {row.request for row in later.rows}
        assert owners <= set(later.blocks.owner)
        assert sum(later.blocks.cell_owned) == later.blocks.owned >= sum(row.blocks for row in later.rows) > 0
        assert later.totals.generated_tokens > sum(early.values())
        assert later.totals.model_seconds > 0
        assert later.totals.worker_seconds >= later.totals.model_seconds
        assert later.totals.plan_seconds > 0
        assert later.totals.text_seconds > 0
        # A step's time is noted when its answer comes, its tokens when the scheduler's turn comes; two are in flight.
        assert later.totals.steps <= sum(later.step_time.counts) <= later.totals.steps + 2
        for id in ids:
            house.engine.gateway.cancel(id)
        while later.live:
            later = await watcher.view()
        assert (later.rows, later.queue, later.blocks.owned) == ([], [], 0)
        assert later.totals.finished == {"cancelled": 4}
    await until_balanced(house.engine)


class TestOfSlowReaders:
    @pytest.fixture
    def settings(self) -> ServeSettings:
        return settings_for(inline=True, kv_cache_memory=16 << 20, limits=LimitSettings(outbox_tokens=20))

    async def test_who_does_not_read_is_shown_parked_and_keeps_its_blocks(self, house: House) -> None:
        ids = [long_request(house.engine, 300), long_request(house.engine, 400)]
        async with watching(house.url) as watcher:
            view = await watcher.view()
            # A row is parked when its credit is planned away: its last tokens may still be on their way.
            while [(row.state, row.generated) for row in view.rows] != [("parked", 20), ("parked", 20)]:
                view = await watcher.view()
            assert (view.running, view.parked) == (0, 2)
            assert view.blocks.owned == sum(row.blocks for row in view.rows) == 4
        for id in ids:
            house.engine.gateway.cancel(id)


async def test_views_are_taken_only_for_watchers_and_shared(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    take = house.engine.view

    async def count() -> View:
        view = await take()
        taken.append(view.time)
        return view

    monkeypatch.setattr(house.engine, "view", count)
    tasks = own_figures().tasks
    async with watching(house.url) as one, watching(house.url) as other:
        views = [await watcher.view() for _ in range(4) for watcher in (one, other)]
        times = [view.time for view in views]
        assert len(set(times)) < len(times)  # the same view went to both
        assert set(times) <= set(taken)
        turns = [int(time / VIEW_SECONDS) for time in taken]
        assert len(set(turns)) == len(turns)  # one in a turn, however many watch
    await until(lambda: own_figures().tasks <= tasks, "no task is left that could take a view")


async def test_what_a_client_says_ends_its_socket(house: House) -> None:
    async with watching(house.url) as watcher:
        await watcher.view()
        await watcher.socket.send_message('{"type": "auth", "api_key": "left from another server"}')  # harmless
        await watcher.view()
        await watcher.socket.send_message('{"type": "cancel", "id": "a"}')
        while not isinstance(frame := await watcher.hear(), DashboardError):
            pass
        assert frame.error.code == "invalid_value"


async def test_only_so_many_watch(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "MAX_WATCHERS", 1)
    async with watching(house.url) as first:
        await first.view()
        async with watching(house.url) as second:
            assert await second.end() == ("server_overloaded", 1013)
        await first.view()
    answer: object = None
    while not isinstance(
        answer, AboutEngine
    ):  # the place is free again as soon as the server has seen the first one leave
        async with watching(house.url) as third:
            answer = await third.hear()


async def test_a_draining_server_ends_its_watchers(house: House) -> None:
    async with watching(house.url) as watcher:
        await watcher.view()
        house.engine.begin_drain()
        code = None
        while code is None:
            try:
                await watcher.hear()
            except ConnectionClosed as closed:
                code = close_code(closed)
        assert code == 1001


async def test_the_page_and_what_is_not_a_websocket(house: House) -> None:
    async with httpx.AsyncClient(base_url=house.url, timeout=SOON) as client:
        page = await client.get("/dashboard")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "style=" not in page.text  # the policy forbids it
        plain = await client.get("/v1/dashboard")
        assert (plain.status_code, plain.json()["error"]["code"]) == (426, "upgrade_required")


class TestWithKeys:
    @pytest.fixture
    def settings(self) -> ServeSettings:
        return msgspec.structs.replace(settings_for(inline=True, kv_cache_memory=8 << 20), api_keys=("right", "other"))

    async def test_the_key_is_asked_for(self, house: House) -> None:
        async with watching(house.url, authorization="Bearer right") as watcher:
            await watcher.view()
        async with watching(house.url) as watcher:
            await watcher.socket.send_message(json.dumps({"type": "auth", "api_key": "other"}))
            assert isinstance(await watcher.hear(), AboutEngine)
        for frame in ('{"type": "auth", "api_key": "wrong"}', '{"type": "auth"}', "{", b"\x00"):
            async with watching(house.url) as watcher:
                await watcher.socket.send_message(frame)
                code, close = await watcher.end()
                assert (code in ("invalid_api_key", "invalid_value", "invalid_json", "invalid_event"), close) == (
                    True,
                    1008,
                )
        async with httpx.AsyncClient(base_url=house.url, timeout=SOON) as client:
            wrong = await client.get("/v1/dashboard", headers=HANDSHAKE | {"Authorization": "Bearer wrong"})
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
            assert (await client.get("/dashboard")).status_code == 200  # the page itself is open; it asks
            assert (await client.get("/v1/dashboard")).status_code == 401

    async def test_who_owes_the_key_keeps_nobody_out_who_has_one(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dashboard, "MAX_WATCHERS", 2)
        monkeypatch.setattr(dashboard, "MAX_OWING", 2)
        async with (
            watching(house.url) as first,  # this one and the next never say a key
            watching(house.url),
            watching(house.url, authorization="Bearer right") as script,
            watching(house.url) as page,
        ):
            await script.view()
            await page.socket.send_message(json.dumps({"type": "auth", "api_key": "other"}))
            await page.view()
            assert await first.end() == ("server_overloaded", 1013)  # the oldest gave way to the page
            async with watching(house.url) as late:
                await late.socket.send_message(json.dumps({"type": "auth", "api_key": "right"}))
                assert await late.end() == ("server_overloaded", 1013)  # two watch
