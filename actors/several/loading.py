"""Loads and unloads the models of a directory: an unchanged engine for each, in a task of its own.

One is loaded at a time, because a worker plans its memory by what is free: of those that are wanted, the first that
there is room for. Others may be unloaded meanwhile. The first that is wanted makes room: others take no new requests
until theirs have ended, or until it gives up. A model that fails ends alone: the others, and the server, go on.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Final

import trio

from ...protocol.errors import ApiError
from ...protocol.served_models import ModelState
from ...protocol.settings import ServeSettings
from ...protocol.steps import Ready, ReportProgress
from ..core import Core
from ..engine import Engine, run_engine
from ..errors import EngineLoadError
from ..gateway.gateways import Gateways
from ..observe.server import Absent
from .directory import Directory
from .failures import Failures
from .parts import Parts, to_unload

_LOG: Final = logging.getLogger("triolet.models")

NO_ROOM: Final = "there is no room for it: the models that are loaded have answers to finish"

RunBeside = Callable[[ServeSettings, Core, Ready], Awaitable[None]]  # runs as long as the engine of these settings


class LoadedModels:
    """The engines by model. Those of `parts` are the models of the directory; their tasks run in `nursery`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        directory: Directory,
        parts: Parts,
        gateways: Gateways,
        *,
        on_progress: ReportProgress,
        beside: RunBeside,
    ) -> None:
        self.engines: dict[str, Engine] = {}  # also of models that are being loaded
        self.known: dict[str, Ready] = {}  # of models that have been loaded
        self._nursery = nursery
        self._directory = directory
        self._parts = parts
        self._gateways = gateways
        self._on_progress = on_progress
        self._beside = beside
        self._scopes: dict[str, trio.CancelScope] = {}
        self._claims = Counter[str]()  # by model: who has it, and may submit a request yet
        self._waiting = Counter[str]()
        self._wanted: dict[str, trio.CancelScope] = {}  # those that wait to be loaded, the first one first
        self._is_loading = False
        self._failures = Failures()
        self._given_up = Counter[str]()  # how often no room was found
        self._changed = trio.lowlevel.ParkingLot()  # a state, or the last claim of a model

    # What requests do.

    async def claim(self, model: str, absent: Absent, deadline: float) -> Engine:
        """The model's engine, once it is loaded; then call `give_back`. Raises ApiError (503, 504)."""
        self._directory.used(model)
        states, given_up = self._directory.states, self._given_up[model]
        while states[model] != "ready":
            if self._gateways.refuses_new:
                raise ApiError("shutting_down", "the server is shutting down", retry_after=1)
            if self._given_up[model] != given_up:
                raise ApiError("engine_unavailable", f"The model {model} is not loaded: {NO_ROOM}.", retry_after=5)
            if (pause := self._pause(model)) > 0:
                why = f"The model {model} failed: {self._directory.reasons[model]}"
                raise ApiError("engine_unavailable", why, retry_after=ceil(pause))
            self.begin_load(model)
            if absent == "begin":
                raise ApiError("model_loading", f"The model {model} is being loaded; try again.", retry_after=2)
            await self._wait_for(model, deadline)
        self._claims[model] += 1
        return self.engines[model]

    def give_back(self, model: str) -> None:
        self._claims[model] -= 1
        if not self._claims[model]:
            self._changed.unpark_all()

    def _pause(self, model: str) -> float:
        """Seconds until a request may have it loaded again, if it failed."""
        failed = self._directory.states[model] == "failed"
        return self._failures.seconds_left(model, trio.current_time()) if failed else 0.0

    async def _wait_for(self, model: str, deadline: float) -> None:
        if self._waiting[model] >= self._parts.settings[model].limits.max_requests:
            raise ApiError("server_overloaded", f"Too many requests wait for the model {model}.", retry_after=2)
        self._waiting[model] += 1
        try:
            with trio.CancelScope(deadline=deadline) as patience:
                await self._changed.park()
        finally:
            self._waiting[model] -= 1
        if patience.cancelled_caught:
            raise ApiError("deadline_exceeded", f"the request's deadline passed before the model {model} was loaded")

    def tell_waiting(self) -> None:
        """The server shuts down: nobody waits for a model any more."""
        self._changed.unpark_all()

    # What operators do, and the start.

    def begin_load(self, model: str) -> None:
        """Load it, unless it is loaded."""
        if self._directory.states[model] in ("unloaded", "failed"):
            self._move(model, "loading")
            self._nursery.start_soon(self._load_or_tell, model)

    async def load(self, model: str) -> None:
        """Load it, and wait for it. Raises EngineLoadError; then the model has failed. Without room it is unloaded."""
        self._move(model, "loading")
        if not await self._take_turn(model):
            self._given_up[model] += 1
            self._move(model, "unloaded", NO_ROOM)
            return
        began = trio.current_time()
        try:
            engine: Engine = await self._nursery.start(self._live, model)
            if self.engines.get(model) is not engine:
                return  # it has failed since
            if engine.ready is not None:
                self.known[model] = engine.ready
            self._move(model, "ready")
            _LOG.info("loaded %s in %.1f s", model, trio.current_time() - began)
            for _ in range(2):  # all who waited for it run before the second: they claim it before it may have to go
                await trio.lowlevel.checkpoint()
        except EngineLoadError as error:
            self._fail(model, str(error))
            raise EngineLoadError(error.code, f"{model}: {error.message}") from error
        finally:
            self._is_loading = False
            self._changed.unpark_all()

    async def _take_turn(self, model: str) -> bool:
        """Wait until nothing else is loaded, and there is room. False: it was given up."""
        with trio.CancelScope() as patience:
            self._wanted[model] = patience
            try:
                while not self._may_load(model):
                    await self._changed.park()
                self._is_loading = True
            finally:
                del self._wanted[model]
        return not patience.cancelled_caught

    def _may_load(self, model: str) -> bool:
        """Whether it is the first that there is room for; the first of all has others make room."""
        if self._is_loading:
            return False
        waiting = [wanted for wanted, patience in self._wanted.items() if not patience.cancel_called]
        for wanted in waiting:
            if not (gone := self._in_the_way(wanted)):
                return wanted == model
            if wanted == waiting[0]:
                for other in gone:
                    self.begin_unload(other, self._parts.settings[wanted].drain_timeout, self._wanted[wanted])
        return False

    async def _load_or_tell(self, model: str) -> None:
        try:
            await self.load(model)
        except EngineLoadError as error:
            _LOG.error("%s", error)

    def begin_load_in_spare_room(self, model: str) -> None:
        """For work that can wait: load it if no other need go for it. Raises ApiError if it fails again and again."""
        if self._directory.states[model] == "failed" and self._failures.is_hopeless(model):
            raise ApiError("engine_error", f"The model {model} failed: {self._directory.reasons[model]}")
        if not (self._pause(model) or self._wanted or self._is_loading or self._in_the_way(model)):
            self.begin_load(model)

    def _in_the_way(self, wanted: str) -> list[str]:
        """The models that must go for this one: those that go already, then idle ones; the longest unused first."""
        budget, states = self._parts.budget, self._directory.states
        if budget is None:
            return []

        def order(model: str) -> tuple[bool, bool]:
            return states[model] == "ready", self._is_busy(model)

        others = [model for model in self._directory.by_use if model in self.engines and model != wanted]
        sizes = self._parts.sizes
        return to_unload(sizes[wanted], budget, [(model, sizes[model]) for model in sorted(others, key=order)])

    def _is_busy(self, model: str) -> bool:
        return bool(self._claims[model] or self.engines[model].gateway.live_requests)

    def begin_unload(self, model: str, patience: float, wanted: trio.CancelScope | None = None) -> None:
        """Let its requests end, for so many seconds, and unload it. Those that come now wait, and load it again.

        `wanted`: only to make room. Then requests that last longer go on, and this is cancelled.
        """
        if self._directory.states[model] == "ready":
            self._move(model, "draining")
            engine, scope = self.engines[model], self._scopes[model]
            self._nursery.start_soon(self._drain, model, engine, scope, patience, wanted)
        elif self._directory.states[model] == "failed":
            self._move(model, "unloaded")

    async def wait_unloaded(self, model: str) -> None:
        """Wait until its worker is gone. If requests wait for it, it is to be loaded again then."""
        while model in self.engines:
            await self._changed.park()

    async def wait_settled(self, model: str) -> None:
        """Wait until it is neither being loaded nor unloaded."""
        while self._directory.states[model] in ("loading", "draining"):
            await self._changed.park()

    async def _drain(
        self, model: str, engine: Engine, scope: trio.CancelScope, patience: float, wanted: trio.CancelScope | None
    ) -> None:
        with trio.move_on_after(patience):
            while self._claims[model] and self.engines.get(model) is engine:
                await self._changed.park()
            await engine.gateway.wait_idle()
        if self.engines.get(model) is not engine:
            return  # it failed meanwhile; perhaps another is there
        if wanted is not None and self._is_busy(model):
            wanted.cancel()
            self._move(model, "ready")
            return
        if wanted is not None:
            _LOG.info("unloading %s to make room", model)
        engine.gateway.refuse_new("engine_unavailable", f"the model {model} is being unloaded")
        ended = ApiError("engine_unavailable", f"the model {model} was unloaded before this request ended")
        engine.gateway.fail_all(ended)
        scope.cancel()

    async def _live(self, model: str, *, task_status: trio.TaskStatus[Engine]) -> None:
        """The model's engine, from its loading to its end."""
        settings = self._parts.settings[model]

        def open_engine(engine: Engine) -> None:
            self.engines[model] = engine
            self._gateways.add(model, engine.gateway)

        try:
            with trio.CancelScope() as self._scopes[model]:
                await run_engine(
                    settings,
                    on_progress=self._on_progress,
                    on_open=open_engine,
                    beside=partial(self._beside, settings),
                    quotas=self._gateways.quotas,
                    task_status=task_status,
                )
        except EngineLoadError:
            raise
        except Exception as error:  # our bug, or the machine's: the other models go on
            _LOG.exception("the engine of %s failed", model)
            why = "its engine failed; the server's log says how"
            if not (model in self.engines and self.engines[model].loaded.is_set()):
                raise EngineLoadError("internal_error", why) from error
            self._fail(model, why)
        finally:
            self._gateways.remove(model)
            self.engines.pop(model, None)
            if self._directory.states[model] in ("ready", "draining"):
                self._directory.move(model, "unloaded")
            self._changed.unpark_all()

    def _fail(self, model: str, reason: str) -> None:
        self._failures.add(model, trio.current_time())
        self._move(model, "failed", reason)

    def _move(self, model: str, state: ModelState, reason: str = "") -> None:
        self._directory.move(model, state, reason)
        self._changed.unpark_all()
