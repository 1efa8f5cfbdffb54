"""The engine: all actors in one nursery, wired. What the web and the command line hold of it is `Engine`.

    gateway -> tokenizer -> admission -> scheduler <=> supervisor == worker
                                         scheduler -> detokenizer -> gateway (outboxes)

Every channel's bound stands beside it. The actors form a circle (scheduler, worker, detokenizer, scheduler), which
cannot lock up: the scheduler's inbox never makes anybody wait, and is itself bounded by what is live.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from ..protocol.errors import ApiError
from ..protocol.messages import ToAdmission, ToDetokenizer, ToScheduler, ToTokenizer
from ..protocol.requests import Prompt
from ..protocol.settings import ServeSettings
from ..protocol.steps import LoadProgress, Ready, Step
from .accounts import Accounts
from .admission import run_admission
from .detokenizer import run_detokenizer
from .gateway import Gateway
from .inline import run_inline
from .ledger import Ledger, take_ledger
from .load_error import EngineLoadError
from .metrics import Metrics
from .scheduler import run_scheduler
from .scheduler_state import SchedulerState
from .scheduler_statistics import SchedulerStatistics
from .supervisor import run_supervisor
from .text_tokenizer import TextTokenizer, load_text_tokenizer
from .tokenizer import TokenizerLane, run_tokenizer
from .viewer import Viewer
from .worker_process import WorkerProcess
from .worker_status import Health, WorkerStatus

__all__ = ["Engine", "EngineLoadError", "Health", "Ledger", "run_engine"]

_STEPS: Final = 4  # more than the steps in flight: the scheduler bounds them itself
_TEXTS: Final = 64  # a step's text and the choices it opened; the detokenizer empties it in one turn
_TOKENIZED: Final = 16  # one batch of the tokenizer


class Engine:
    """A running engine."""

    def __init__(
        self,
        settings: ServeSettings,
        *,
        gateway: Gateway,
        accounts: Accounts,
        state: SchedulerState,
        status: WorkerStatus,
        lane: TokenizerLane,
    ) -> None:
        self.settings = settings
        self.gateway = gateway
        self.model_name = model_name(settings)
        self.created = int(time.time())
        self._state = state
        self._status = status
        self._lane = lane
        self._draining = False
        self.metrics = Metrics(
            accounts=accounts,
            gateway=gateway.statistics,
            scheduler=state.statistics,
            worker=status,
            healthy=lambda: self.health().ready,
        )
        self.viewer = Viewer(
            self.model_name,
            accounts=accounts,
            state=state,
            status=status,
            health=self.health,
            live=lambda: gateway.live_requests,
            started=trio.current_time(),
        )

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
        if self._draining:
            return Health(ready=False, status="draining", reason="the server is shutting down")
        return self._status.health(trio.current_time())

    def ledger(self) -> Ledger:
        blocks = self._state.statistics().blocks
        children = 0 if self._status.pid is None else 1
        return take_ledger(blocks, self.gateway.live_requests, children)

    def scheduler_statistics(self) -> SchedulerStatistics:
        """Queues, blocks and totals at this moment."""
        return self._state.statistics()

    def begin_drain(self) -> None:
        """Refuse new requests; those accepted go on."""
        self._draining = True
        self.gateway.refuse_new("shutting_down", "the server is shutting down")

    async def wait_idle(self) -> None:
        await self.gateway.wait_idle()


def model_name(settings: ServeSettings) -> str:
    """The name under which clients ask for the model."""
    return settings.served_model_name or Path(settings.engine.model).resolve().name


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
    accounts, status = Accounts(), WorkerStatus()
    state = SchedulerState(outbox_tokens=settings.limits.outbox_tokens, stall_timeout=settings.stall_timeout)
    # As many as there are places: `submit` never finds it full before the house is.
    to_tokenizer, requests = trio.open_memory_channel[ToTokenizer](settings.limits.max_requests)
    to_admission, tokenized = trio.open_memory_channel[ToAdmission](_TOKENIZED)
    # Unbounded, and bounded by its use: a few messages per live request, one answer per step in flight.
    to_scheduler, inbox = trio.open_memory_channel[ToScheduler](float("inf"))
    to_executor, steps = trio.open_memory_channel[Step](_STEPS)
    to_detokenizer, texts = trio.open_memory_channel[ToDetokenizer](_TEXTS)
    # While actors are being cancelled, one may still speak without waiting to another that has gone. Held open here,
    # the channel takes that last message, and the error that ended the engine is the only one to be seen.
    held_open = (requests.clone(), inbox.clone(), steps.clone(), texts.clone())
    gateway = Gateway(
        settings.limits,
        tokenizer=to_tokenizer,
        scheduler=to_scheduler.clone(),
        worker=status,
        accounts=accounts,
        several_tenants=len(settings.api_keys) > 1,
    )
    last_word = ApiError("shutting_down", "the engine was stopped before this request ended")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run_scheduler, inbox, to_executor, to_detokenizer, state=state))
            run_worker = partial(
                run_inline if settings.inline else partial(run_supervisor, first=worker),
                settings.engine,
                steps=steps,
                scheduler=to_scheduler.clone(),
                status=status,
                on_progress=on_progress,
            )
            text, ready = await _load(settings, nursery, run_worker)
            lane = TokenizerLane(text, ready)
            nursery.start_soon(partial(run_tokenizer, requests, to_admission, lane=lane, gateway=gateway))
            nursery.start_soon(
                partial(run_admission, tokenized, ready=ready, gateway=gateway, scheduler=to_scheduler.clone())
            )
            nursery.start_soon(partial(run_detokenizer, texts, tokenizer=text, gateway=gateway, scheduler=to_scheduler))
            engine = Engine(settings, gateway=gateway, accounts=accounts, state=state, status=status, lane=lane)
            task_status.started(engine)
    except Exception:
        last_word = ApiError("engine_error", "the engine failed; the server's log says how")
        raise
    finally:
        # Whatever ends the engine, every stream gets its terminal event; its writer may still be there.
        gateway.refuse_new("shutting_down", "the engine has stopped")
        gateway.fail_all(last_word)
        for end in held_open:
            end.close()


async def _load(
    settings: ServeSettings, nursery: trio.Nursery, run_worker: Callable[..., Awaitable[object]]
) -> tuple[TextTokenizer, Ready]:
    """Start the worker and read the tokenizer meanwhile."""
    loaded: list[TextTokenizer] = []

    async def load_text() -> None:
        job = partial(load_text_tokenizer, settings.engine.model)
        loaded.append(await trio.to_thread.run_sync(job, abandon_on_cancel=True))

    async with trio.open_nursery() as loading:
        loading.start_soon(load_text)
        ready: Ready = await nursery.start(run_worker)
    return loaded[0], ready


def _ignore(progress: LoadProgress) -> None:
    pass
