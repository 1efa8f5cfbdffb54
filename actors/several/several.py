"""A server of several models: the `Server` that the web uses, in front of an `Engine` for each model.

serve a=PATH b=PATH
directory   names, aliases, states (pure)
loading     an engine per model: its own worker, scheduler, tokenizer, gateway
Gateways    what the web says of a request by its id (gateway/gateways.py)
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Final

import trio

from ...protocol.engine_view import AboutEngine, View
from ...protocol.errors import ApiError
from ...protocol.explanation import Explanation
from ...protocol.flight import FlightRecording
from ...protocol.reports import BatchFigures, FrontsReport, Health, ServerReport, WorkerFigures
from ...protocol.served_models import ModelStatus, ServedModelEntry
from ...protocol.settings import ServeSettings
from ...protocol.steps import LoadProgress, Ready, ReportProgress
from ..engine import Engine
from ..gateway.gateways import Gateways
from ..gateway.quotas import Quotas
from ..observe.observe import own_figures
from ..observe.server import Absent, ListedModel, Models, NamedEngine
from ..scheduler.state import SchedulerState
from ..supervisor.worker_status import WorkerStatus
from .directory import Directory
from .loading import LoadedModels, RunBeside
from .parts import GIB, Parts

_LOG: Final = logging.getLogger("triolet.models")


class Several(Models):
    """The `Server`, and the models that it serves."""

    def __init__(
        self,
        settings: ServeSettings,
        nursery: trio.Nursery,
        *,
        parts: Parts,
        on_progress: ReportProgress,
        beside: RunBeside,
    ) -> None:
        self.settings = settings
        self.gateway = Gateways(Quotas(settings.key_tables))
        self.loaded = trio.Event()
        self._created = int(time.time())
        self._context_lengths = parts.context_lengths
        self.batches = BatchFigures()
        self.directory = Directory(
            [model.name for model in settings.models], dict(text.split("=", 1) for text in settings.aliases)
        )
        self.models = LoadedModels(
            nursery,
            self.directory,
            parts,
            self.gateway,
            on_progress=on_progress,
            beside=beside,
        )

    # What requests use.

    @property
    def served(self) -> Models:
        return self

    @asynccontextmanager
    async def use(
        self, name: str | None, fallbacks: Sequence[str], *, absent: Absent, deadline: float | None
    ) -> AsyncGenerator[NamedEngine]:
        called, model = self.directory.find(name, fallbacks)
        engine = await self.models.claim(model, absent, inf if deadline is None else deadline)
        try:
            yield NamedEngine(called, engine)
        finally:
            self.models.give_back(model)

    def find(self, name: str | None, fallbacks: Sequence[str]) -> ListedModel:
        return self._listed(self.directory.find(name, fallbacks).called)

    def listed(self) -> Sequence[ListedModel]:
        return [self._listed(name) for name in self.directory.names]

    def _listed(self, name: str) -> ListedModel:
        model = self.directory.find(name).model
        ready, engine = self.models.known.get(model), self.engine_of(model)
        created = self._created if engine is None else engine.created
        length = self._context_lengths.get(model, 0) if ready is None else ready.context_length
        return ListedModel(name, model, created, length, engine is not None, ready)

    @property
    def engines(self) -> Sequence[Engine]:
        found = map(self.engine_of, self.directory.states)
        return [engine for engine in found if engine is not None]

    def engine_of(self, model: str) -> Engine | None:
        """Of a model that is loaded."""
        return self.models.engines[model] if self.directory.states[model] == "ready" else None

    # What operators do.

    def entries(self) -> list[ServedModelEntry]:
        return [self._entry(model) for model in self.directory.states]

    def _entry(self, model: str) -> ServedModelEntry:
        directory, ready, engine = self.directory, self.models.known.get(model), self.models.engines.get(model)
        return ServedModelEntry(
            id=model,
            aliases=[alias for alias, meant in directory.aliases.items() if meant == model],
            status=ModelStatus(value=directory.states[model], reason=directory.reasons.get(model) or None),
            requests=0 if engine is None else engine.gateway.live_requests,
            context_length=self._listed(model).context_length,
            weights_bytes=None if ready is None else ready.memory.weights_bytes,
            kv_bytes=None if ready is None else ready.memory.kv_bytes,
        )

    async def load(self, name: str) -> ServedModelEntry:
        model = self.directory.find(name).model
        await self.models.wait_settled(model)  # one that is being unloaded is loaded after that
        self.models.begin_load(model)
        await self.models.wait_settled(model)
        if (state := self.directory.states[model]) in ("failed", "unloaded"):
            raise ApiError("engine_unavailable", f"The model {model} is {state}: {self.directory.reasons[model]}")
        return self._entry(model)

    async def unload(self, name: str) -> ServedModelEntry:
        model = self.directory.find(name).model
        await self.models.wait_settled(model)
        self.models.begin_unload(model, self.settings.drain_timeout)
        await self.models.wait_unloaded(model)
        return self._entry(model)

    def set_alias(self, alias: str, model: str | None) -> ServedModelEntry | None:
        if model is None:
            self.directory.remove_alias(alias)
            return None
        aim = self.directory.find(model).model
        self.directory.set_alias(alias, aim)
        return self._entry(aim)

    # What operators ask.

    @property
    def ready(self) -> Ready | None:
        engine = self._watched
        return None if engine is None else engine.ready

    @property
    def draining(self) -> bool:
        return self.gateway.refuses_new

    def begin_drain(self) -> None:
        self.gateway.refuse_new()
        self.models.tell_waiting()

    async def health(self) -> Health:
        """Ready if any model is, and all that were to be loaded at the start have been."""
        if self.draining:
            return Health(ready=False, status="draining", reason="the server is shutting down")
        models = {model: await self._health_of(model) for model in self.directory.states}
        troubles = [f"{model} is {one.status}" for model, one in models.items() if not one.ready]
        starting = next((one for one in models.values() if one.status == "loading"), None)
        if starting is not None and not self.loaded.is_set():
            return Health(ready=False, status="loading", reason=starting.reason, loading=starting.loading)
        ready = len(troubles) < len(models)
        return Health(
            ready=ready, status="ready" if ready else "unavailable", reason=", ".join(troubles), models=models
        )

    async def _health_of(self, model: str) -> Health:
        engine, state = self.models.engines.get(model), self.directory.states[model]
        if engine is not None and state in ("ready", "loading"):
            return await engine.health()
        return Health(ready=False, status=state, reason=self.directory.reasons.get(model, ""))

    async def reports(self) -> Mapping[str, ServerReport]:
        return {model: await engine.report() for model, engine in self.models.engines.items()}

    async def report(self) -> ServerReport:
        """What concerns no model alone."""
        return ServerReport(
            health=await self.health(),
            scheduler=SchedulerState(secret=b"", max_losses=1).statistics(),
            worker=WorkerFigures(pid=None, restarts=0, step_time=WorkerStatus().step_time.figures()),
            process=own_figures(),
            web=FrontsReport(
                live=self.gateway.live_requests, accounts=self.gateway.accounts.figures(), kept=self.gateway.kept
            ),
            batches=self.batches,
        )

    async def recordings(self) -> Mapping[str, FlightRecording]:
        return {model: engine.observer.recording() for model, engine in self.models.engines.items()}

    async def about(self) -> AboutEngine | None:
        engine = self._watched
        return None if engine is None else await engine.about()

    async def view(self) -> View:
        engine = self._watched
        if engine is None:
            raise ApiError("engine_unavailable", "No model is loaded.", retry_after=2)
        return await engine.view()

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        for engine in tuple(self.models.engines.values()):
            if (found := await engine.explain(wanted, tenant)) is not None:
                return found
        return None

    @property
    def _watched(self) -> Engine | None:
        """The model of the dashboard: the first that is loaded."""
        return next(iter(self.engines), None)


async def run_several(
    settings: ServeSettings,
    *,
    parts: Parts,
    on_progress: ReportProgress,
    beside: RunBeside,
    beside_all: Callable[[Several], Awaitable[None]],
    on_open: Callable[[Several], None] = lambda several: None,
    task_status: trio.TaskStatus[Several] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load the models and run until cancelled. Raises `EngineLoadError` if one cannot be loaded.

    `beside` runs as long as each engine, `beside_all` as long as the server, from when it is ready.
    """
    async with trio.open_nursery() as nursery:

        def show(progress: LoadProgress) -> None:
            if not several.loaded.is_set():  # later ones are lines in the log
                on_progress(progress)

        several = Several(settings, nursery, parts=parts, on_progress=show, beside=beside)
        on_open(several)
        for model in parts.at_start:
            several.directory.move(model, "loading")
        for model in parts.at_start:
            await several.models.load(model)
        several.loaded.set()
        for model, size in parts.sizes.items():
            if model not in parts.at_start:
                _LOG.info("%s is loaded when a request names it; it takes %.2f GiB", model, size / GIB)
        nursery.start_soon(beside_all, several)
        task_status.started(several)
