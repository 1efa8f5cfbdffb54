"""The engine: all actors in one nursery, wired. What the web and the command line hold of it is `Engine`.

    gateway -> tokenizer -> admission -> scheduler <=> supervisor == worker
                                         scheduler -> detokenizer -> gateway (outboxes)

The inner half is `core.py`, the outer `front_actors.py`. Here both are in one process; with several web processes the
outer half runs in each of them (`front.py`) and the inner in a process of its own (`fronts.py`).
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from ..protocol.engine_view import About, View
from ..protocol.errors import ApiError
from ..protocol.explanation import Explanation, Standing
from ..protocol.requests import Prompt
from ..protocol.settings import ServeSettings, model_name
from ..protocol.steps import LoadProgress, Ready
from .core import Core
from .errors import EngineLoadError
from .executor.inline import run_inline
from .front_actors import FrontActors
from .gateway.accounts import Accounts
from .gateway.gateway import Gateway
from .observe.explain import explain
from .observe.ledger import Ledger, take_ledger
from .observe.metrics import Metrics
from .observe.traces import open_traces
from .observe.viewer import Viewer
from .scheduler.state import SchedulerState
from .scheduler.statistics import SchedulerStatistics
from .supervisor.supervisor import run_supervisor
from .supervisor.worker_process import WorkerProcess
from .supervisor.worker_status import Health, WorkerStatus
from .tokenizer.text_tokenizer import TextTokenizer
from .tokenizer.tokenizer import TokenizerLane, read_text_tokenizer

__all__ = ["Engine", "EngineLoadError", "Health", "Ledger", "run_engine"]


class Engine:
    """A running engine."""

    def __init__(
        self,
        settings: ServeSettings,
        *,
        gateway: Gateway,
        accounts: Accounts,
        state: SchedulerState | None,
        status: WorkerStatus,
        lane: TokenizerLane,
    ) -> None:
        """`state` is None where the scheduler runs in another process."""
        self.settings = settings
        self.gateway = gateway
        self.model_name = model_name(settings)
        self.vllm_model = self.model_name if settings.metric_aliases == "vllm" else None  # of the aliases in /metrics
        self.created = int(time.time())
        self._state = state
        self._status = status
        self._lane = lane
        self.draining = False
        self.metrics = Metrics(
            accounts=accounts,
            gateway=gateway.statistics,
            scheduler=self.scheduler_statistics,
            worker=status,
            healthy=lambda: self.health().ready,
            vllm_model=self.vllm_model,
        )
        # The dashboard's: it looks at the scheduler's own tables, so there is none where that is another process.
        self._viewer = None if state is None else Viewer(
            self.model_name, state=state, status=status, health=self.health, started=trio.current_time()
        )  # fmt: skip

    @property
    def ready(self) -> Ready | None:
        """What the worker reported when it was last started."""
        return self._status.ready

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        return await self._lane.tokenize(prompt)

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        return await self._lane.detokenize(ids)

    def health(self) -> Health:
        """Whether a request sent now would be computed, from progress and not from good will."""
        if self.draining:
            return Health(ready=False, status="draining", reason="the server is shutting down")
        return self._status.health(trio.current_time())

    def ledger(self) -> Ledger:
        blocks = self.scheduler_statistics().blocks
        children = 0 if self._status.pid is None else 1
        return take_ledger(blocks, self.gateway.live_requests, children)

    # What operators ask, of the whole server: with several processes the answers take a message to each of them.

    async def whole_health(self) -> Health:
        return self.health()

    async def whole_ledger(self) -> Ledger:
        return self.ledger()

    async def whole_metrics(self) -> bytes:
        return self.metrics.render()

    async def whole_about(self) -> About | None:
        """What a dashboard is told first, and again when there is another worker; None before the first."""
        assert self._viewer is not None, "the scheduler runs in another process: ask there"
        ready = self.ready
        return None if ready is None else self._viewer.about(ready, trio.current_time())

    async def whole_view(self) -> View:
        """What a dashboard shows."""
        assert self._viewer is not None, "the scheduler runs in another process: ask there"
        return self._viewer.view(trio.current_time(), self.gateway.accounts, self.gateway.live_requests)

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Where a request of this tenant is and why, by its id or its X-Request-Id; None for one not known here."""
        history = self.gateway.history(wanted, tenant)
        if history is None:
            return None
        standing = await self._standing(history.id) if history.finished is None else None
        return explain(history, standing, self.gateway.places.share(tenant))

    async def _standing(self, id: str) -> Standing | None:
        assert self._state is not None, "the scheduler runs in another process: ask there"
        await trio.lowlevel.checkpoint()
        return self._state.standing(id, trio.current_time())

    def scheduler_statistics(self) -> SchedulerStatistics:
        """Queues, blocks and totals at this moment, of a scheduler in this process."""
        assert self._state is not None, "the scheduler runs in another process: ask for the whole server's figures"
        return self._state.statistics()

    def begin_drain(self) -> None:
        """Refuse new requests; those accepted go on."""
        self.draining = True
        self.gateway.refuse_new("shutting_down", "the server is shutting down")

    async def wait_idle(self) -> None:
        await self.gateway.wait_idle()


async def run_engine(
    settings: ServeSettings,
    *,
    worker: WorkerProcess | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    task_status: trio.TaskStatus[Engine] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load the model and run until cancelled; started with the Engine. Raises `EngineLoadError` where that fails.

    `worker` is one that was started early, with `settings.engine`; without it the engine starts its own.
    """
    if not await trio.Path(settings.engine.model).is_dir():
        raise EngineLoadError("invalid_checkpoint", f"there is no checkpoint folder {settings.engine.model}")
    try:
        await _run(settings, worker, on_progress or _ignore, task_status)
    except BaseExceptionGroup as group:
        # The nurseries wrap it, but to the caller it is one plain refusal.
        refused, rest = group.split(EngineLoadError)
        if refused is None or rest is not None:
            raise
        error: BaseException = refused
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _run(
    settings: ServeSettings,
    worker: WorkerProcess | None,
    on_progress: Callable[[LoadProgress], None],
    task_status: trio.TaskStatus[Engine],
) -> None:
    traces = await trio.to_thread.run_sync(open_traces, settings.otlp_endpoint)  # it may import a lot
    core = Core(settings)
    front = FrontActors(settings, scheduler=core.to_scheduler, status=core.status, traces=traces)
    last_word = ApiError("shutting_down", "the engine was stopped before this request ended")
    try:
        async with trio.open_nursery() as nursery:
            run_worker = run_inline if settings.inline else partial(run_supervisor, first=worker)
            text, ready = await _load(settings, partial(core.start, nursery, run_worker, on_progress))
            lane = front.start(nursery, text, ready, core.texts)
            engine = Engine(
                settings,
                gateway=front.gateway,
                accounts=front.accounts,
                state=core.state,
                status=core.status,
                lane=lane,
            )
            task_status.started(engine)
    except Exception:
        last_word = ApiError("engine_error", "the engine failed; the server's log says how")
        raise
    finally:
        await front.end(last_word)
        core.close()


async def _load(settings: ServeSettings, start_core: Callable[[], Awaitable[Ready]]) -> tuple[TextTokenizer, Ready]:
    """Start the worker and read the tokenizer meanwhile."""
    loaded: list[TextTokenizer] = []

    async def load_text() -> None:
        loaded.append(await read_text_tokenizer(settings.engine.model))

    async with trio.open_nursery() as loading:
        loading.start_soon(load_text)
        ready = await start_core()
    return loaded[0], ready


def _ignore(progress: LoadProgress) -> None:
    pass
