"""The engine: all actors in one nursery, wired.

    gateway -> tokenizer -> admission -> scheduler <=> supervisor == worker
                                         scheduler -> detokenizer -> gateway (outboxes)

The inner half is `core.py`, the outer half `front_actors.py`. Here both are in one process. With several web processes,
the outer half runs in each of them (`front.py`) and the inner half in its own process (`fronts.py`). The web uses it as
a `Server` (`observe/server.py`); other programs use `open_engine` and `Engine.stream`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from ..protocol.engine_view import AboutEngine, View
from ..protocol.errors import ApiError
from ..protocol.events import StreamEvent
from ..protocol.explanation import Standing
from ..protocol.flight import FlightRecording
from ..protocol.reports import FrontsReport, Health, SchedulerStatistics, ServerReport
from ..protocol.requests import Generate
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready, ReportProgress
from .core import Core
from .errors import EngineLoadError
from .front_actors import FrontActors
from .gateway.quotas import Quotas
from .observe.observe import Observer
from .observe.traces import Traces, open_traces
from .supervisor.child_process import ChildProcess
from .tokenizer.text_tokenizer import TextTokenizer
from .tokenizer.tokenizer import read_text_tokenizer

__all__ = ["Engine", "EngineLoadError", "open_engine", "run_engine"]

RunBeside = Callable[[Core, Ready], Awaitable[None]]


class Engine(FrontActors):
    """A running engine: the `Server` whose scheduler is in this process."""

    def __init__(self, settings: ServeSettings, core: Core, traces: Traces | None) -> None:
        super().__init__(
            settings,
            scheduler=core.to_scheduler,
            status=core.status,
            adapters=core.adapters,
            quotas=core.quotas,
            traces=traces,
        )
        self._core = core
        core.refused = self.accounts.refused
        self.observer = Observer(
            settings,
            state=core.state,
            status=core.status,
            draining=lambda: self.draining,
            collect_web=self._collect_web,
            batches=core.batches,
        )

    async def stream(self, request: Generate) -> AsyncGenerator[StreamEvent]:
        """Every event of a request up to the terminal one. Raises ApiError if there is no place for it."""
        outbox = self.gateway.submit(request)
        while True:
            try:
                taken = await outbox.drain()
            except trio.EndOfChannel:
                return
            for event in taken:
                yield event

    def scheduler_statistics(self) -> SchedulerStatistics:
        """Queues, blocks and totals now."""
        return self._core.state.statistics()

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        self._adapters.put(await self.tried_adapter(name, path, replaces=replaces), replaces=replaces)

    async def unload_adapter(self, name: str) -> None:
        self._adapters.remove(name)

    async def health(self) -> Health:
        return self.observer.health()

    async def report(self) -> ServerReport:
        return await self.observer.report()

    async def recordings(self) -> Mapping[str, FlightRecording]:
        return {self.model_name: self.observer.recording()}

    async def about(self) -> AboutEngine | None:
        return self.observer.about()

    async def view(self) -> View:
        return await self.observer.view()

    async def standing(self, id: str) -> Standing | None:
        await trio.lowlevel.checkpoint()
        return self.observer.standing(id)

    async def _collect_web(self) -> FrontsReport:
        return FrontsReport(live=self.gateway.live_requests, accounts=self.accounts.figures(), kept=self.gateway.kept)


@asynccontextmanager
async def open_engine(settings: ServeSettings, on_progress: ReportProgress | None = None) -> AsyncGenerator[Engine]:
    """An engine for the duration of a block, in this process and without a web server."""
    async with trio.open_nursery() as nursery:
        engine: Engine = await nursery.start(partial(run_engine, settings, on_progress=on_progress))
        yield engine
        nursery.cancel_scope.cancel()


async def run_engine(
    settings: ServeSettings,
    *,
    worker: ChildProcess | None = None,
    on_progress: ReportProgress | None = None,
    on_open: Callable[[Engine], None] = lambda engine: None,
    beside: RunBeside | None = None,
    quotas: Quotas | None = None,
    task_status: trio.TaskStatus[Engine] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load the model and run until cancelled; started with the Engine. Raises `EngineLoadError` if loading fails.

    `worker` was started early with `settings.engine`; without it the engine starts one. `on_open` gets the Engine
    before the model is loaded: it then answers questions, and `ready` is None. `beside` runs as long as the engine,
    from when it is ready. `quotas` are those that it shares with other engines.
    """
    if not await trio.Path(settings.engine.model).exists():
        raise EngineLoadError("invalid_checkpoint", f"there is no folder or file {settings.engine.model}")
    try:
        await _run(settings, quotas, worker, on_progress or (lambda progress: None), on_open, beside, task_status)
    except BaseExceptionGroup as group:
        # The nurseries wrap it in groups, but the caller gets one plain error.
        refused, rest = group.split(EngineLoadError)
        if refused is None or rest is not None:
            raise
        error: BaseException = refused
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _run(
    settings: ServeSettings,
    quotas: Quotas | None,
    worker: ChildProcess | None,
    on_progress: ReportProgress,
    on_open: Callable[[Engine], None],
    beside: RunBeside | None,
    task_status: trio.TaskStatus[Engine],
) -> None:
    traces = await trio.to_thread.run_sync(open_traces, settings.otlp_endpoint)  # it may import a lot
    core = Core(settings, quotas)
    engine = Engine(settings, core, traces)
    last_word = ApiError("shutting_down", "the engine was stopped before this request ended")
    try:
        async with trio.open_nursery() as nursery:
            on_open(engine)
            text, ready = await _load(settings, partial(core.start, nursery, on_progress, worker))
            engine.start(nursery, text, ready, core.texts)
            await engine.open()
            if beside is not None:
                nursery.start_soon(beside, core, ready)
            task_status.started(engine)
    except Exception:
        last_word = ApiError("engine_error", "the engine failed; the server's log says how")
        raise
    finally:
        await engine.end(last_word)
        await core.close()


async def _load(settings: ServeSettings, start_core: Callable[[], Awaitable[Ready]]) -> tuple[TextTokenizer, Ready]:
    """Start the worker, and read the tokenizer while it loads."""
    loaded: list[TextTokenizer] = []

    async def load_text() -> None:
        loaded.append(await read_text_tokenizer(settings.engine.model, settings.engine.chat_template))

    async with trio.open_nursery() as loading:
        loading.start_soon(load_text)
        ready = await start_core()
    return loaded[0], ready
