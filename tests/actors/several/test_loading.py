"""Loading and unloading, with engines that the test answers for."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs

from triolet.actors.batch.runner import PASSING
from triolet.actors.errors import EngineLoadError
from triolet.actors.gateway.gateways import Gateways
from triolet.actors.gateway.quotas import Quotas
from triolet.actors.several import loading
from triolet.actors.several.directory import Directory
from triolet.actors.several.failures import HOPELESS, PAUSES
from triolet.actors.several.loading import LoadedModels
from triolet.actors.several.parts import Parts
from triolet.protocol.errors import ApiError
from triolet.protocol.settings import EngineSettings, ServeSettings

SIZES = {"big": 7, "other": 7, "small": 1}
BUDGET = 10
SETTINGS = ServeSettings(engine=EngineSettings(model=""), drain_timeout=30.0)


class Gateway:
    """Live while the test says so."""

    def __init__(self) -> None:
        self.live_requests = 0
        self.ended = trio.Event()

    def refuse_new(self, *error: object) -> None: ...

    def fail_all(self, error: ApiError) -> None:
        self.live_requests = 0

    async def wait_idle(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.live_requests:
            await self.ended.wait()


class FakeEngine:
    def __init__(self) -> None:
        self.gateway = Gateway()
        self.ready = None
        self.loaded = trio.Event()
        self.crash = trio.Event()


class House:
    """`broken` are models that cannot be loaded; `started` are the engines, by model."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.directory = Directory([*SIZES])
        self.broken: set[str] = set()
        self.started: dict[str, list[FakeEngine]] = {name: [] for name in SIZES}
        self.gateways = Gateways()
        settings = {name: structs.replace(SETTINGS, served_model_name=name) for name in SIZES}
        self.models = LoadedModels(
            nursery,
            self.directory,
            Parts(settings, [], BUDGET, SIZES),
            self.gateways,
            on_progress=lambda progress: None,
            beside=self._beside,
        )

    async def _beside(self, *ignored: object) -> None: ...

    async def run_engine(
        self,
        settings: ServeSettings,
        *,
        on_open: Callable[[Any], None],
        task_status: Any,
        quotas: Quotas | None,
        **ignored: object,
    ) -> None:
        name = settings.served_model_name or ""
        assert quotas is self.gateways.quotas  # a key's requests to all models count together
        await trio.lowlevel.checkpoint()
        if name in self.broken:
            raise EngineLoadError("internal_error", "killed")
        engine = FakeEngine()
        self.started[name].append(engine)
        on_open(engine)
        engine.loaded.set()
        task_status.started(engine)
        await engine.crash.wait()
        raise RuntimeError("planted")

    def state(self, model: str) -> str:
        return self.directory.states[model]

    async def ask(self, name: str) -> None:
        """A request that ends at once."""
        await self.models.claim(name, "load", trio.current_time() + 10 * SETTINGS.drain_timeout)
        self.models.give_back(name)


@asynccontextmanager
async def running(patch: pytest.MonkeyPatch) -> AsyncGenerator[House]:
    async with trio.open_nursery() as nursery:
        house = House(nursery)
        patch.setattr(loading, "run_engine", house.run_engine)
        yield house
        nursery.cancel_scope.cancel()


async def test_an_engine_that_fails_while_it_drains_takes_no_later_one_with_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(monkeypatch) as house:
        await house.ask("big")
        await house.models.claim("big", "load", trio.current_time())  # its request's body is still arriving
        house.models.begin_unload("big", 1.0)
        await trio.testing.wait_all_tasks_blocked()
        house.started["big"][0].crash.set()
        await trio.testing.wait_all_tasks_blocked()
        assert house.state("big") == "failed"
        house.models.begin_load("big")
        await trio.sleep(2.0)
        await house.ask("big")
        house.models.give_back("big")
        house.models.begin_unload("big", 1.0)
        await house.models.wait_unloaded("big")
        assert house.state("big") == "unloaded"


async def test_what_fits_is_loaded_while_another_waits_for_a_long_answer(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(monkeypatch) as house, trio.open_nursery() as nursery:
        await house.ask("big")
        house.started["big"][0].gateway.live_requests = 1
        nursery.start_soon(house.ask, "other")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await house.ask("small")
        assert trio.current_time() == began
        assert house.directory.states == {"big": "draining", "other": "loading", "small": "ready"}
        house.started["big"][0].gateway.live_requests = 0
        house.started["big"][0].gateway.ended.set()
        await trio.testing.wait_all_tasks_blocked()
        assert house.directory.states == {"big": "unloaded", "other": "ready", "small": "ready"}


async def test_who_waits_for_a_long_answer_gives_up_and_neither_it_nor_its_model_suffers(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(monkeypatch) as house, trio.open_nursery() as nursery:
        await house.ask("big")
        gateway = house.started["big"][0].gateway
        gateway.live_requests = 1

        async def ask_in_vain() -> None:
            with pytest.raises(ApiError, match="no room") as refused:
                await house.ask("other")
            assert (refused.value.status, refused.value.retry_after) == (503, 5)

        nursery.start_soon(ask_in_vain)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await house.ask("big")  # waits, but not for the end of the long answer
        assert trio.current_time() - began == SETTINGS.drain_timeout
        await trio.testing.wait_all_tasks_blocked()
        assert house.directory.states == {"big": "ready", "other": "unloaded", "small": "unloaded"}
        assert gateway.live_requests == 1


async def test_without_patience_an_idle_model_makes_room_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SETTINGS", structs.replace(SETTINGS, drain_timeout=0.0))
    async with running(monkeypatch) as house:
        await house.models.load("big")
        await house.models.load("other")
        assert house.state("other") == "ready"


async def test_the_model_that_was_wanted_first_gets_the_room(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(monkeypatch) as house, trio.open_nursery() as nursery:
        await house.ask("big")
        gateway = house.started["big"][0].gateway
        gateway.live_requests = 1
        nursery.start_soon(house.ask, "other")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(house.ask, "big")  # wants it back as soon as it is unloaded
        await trio.testing.wait_all_tasks_blocked()
        gateway.live_requests = 0
        gateway.ended.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [len(house.started[name]) for name in ("other", "big")] == [1, 2]  # each got its turn
        assert house.state("big") == "ready"


async def test_a_model_that_failed_is_tried_again_at_a_request_after_a_growing_pause(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(monkeypatch) as house:
        house.broken.add("big")
        for pause in PAUSES:
            for _ in range(2):  # the one that tries it, and one that does not
                with pytest.raises(ApiError, match="big failed: killed") as refused:
                    await house.ask("big")
                assert (refused.value.status, refused.value.retry_after) == (503, pause)
            await trio.sleep(pause)
        house.broken.clear()
        await house.ask("big")


async def test_work_that_can_wait_takes_spare_room_and_fails_after_a_few_failures(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(monkeypatch) as house:
        await house.models.load("big")
        for name in ("other", "small"):
            house.models.begin_load_in_spare_room(name)
        await trio.testing.wait_all_tasks_blocked()
        assert house.directory.states == {"big": "ready", "other": "unloaded", "small": "ready"}
        house.models.begin_unload("big", 0.0)
        await house.models.wait_unloaded("big")
        house.broken.add("other")
        for pause in PAUSES[:HOPELESS]:
            house.models.begin_load_in_spare_room("other")
            await trio.sleep(pause)
        with pytest.raises(ApiError, match="other failed: killed") as refused:
            house.models.begin_load_in_spare_room("other")
        assert refused.value.code not in PASSING
