"""The engine's outer half, wired: everything between the web and a scheduler, which may be in another process.

gateway -> tokenizer (-> grammar) -> admission -> to_scheduler
           texts -> detokenizer -> gateway (outboxes)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Self

import trio

from ..protocol.adapters import Adapter
from ..protocol.errors import ApiError
from ..protocol.explanation import Explanation, Standing
from ..protocol.grammars import OpenCompiler
from ..protocol.messages import ToAdmission, ToDetokenizer, ToGrammar, ToScheduler, ToTokenizer
from ..protocol.openai_responses import TokenizerInfo
from ..protocol.requests import Prompt
from ..protocol.settings import ServeSettings, model_name
from ..protocol.steps import Ready
from .adapters import AdapterTable, try_adapter
from .admission.admission import run_admission
from .detokenizer.detokenizer import Detokenizer, run_detokenizer
from .errors import EngineLoadError
from .gateway.accounts import Accounts
from .gateway.gateway import Gateway
from .gateway.history import History
from .gateway.quotas import Quotas
from .grammar.grammar import run_grammar
from .observe.explain import explain
from .observe.traces import Traces
from .supervisor.worker_status import WorkerStatus
from .tokenizer.text_tokenizer import TextTokenizer
from .tokenizer.tokenizer import TokenizerLane, run_tokenizer
from .usage.usage import usage_records

_TOKENIZED: Final = 16  # one batch of the tokenizer


class FrontActors(ABC):
    """Gateway, tokenizer, admission and detokenizer: the part of a `Server` that does not depend on the scheduler."""

    def __init__(
        self,
        settings: ServeSettings,
        *,
        scheduler: trio.MemorySendChannel[ToScheduler],
        status: WorkerStatus,
        adapters: AdapterTable,
        quotas: Quotas,
        process: str | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.settings = settings
        self.model_name = model_name(settings)
        self.created = int(time.time())
        self.accounts = Accounts()
        ends: list[Callable[[History], None]] = []
        self._usage = usage_records(settings)
        if traces is not None:
            self.accounts.traces = traces.counts
            ends.append(traces.offer)
        if self._usage is not None:
            self.accounts.usage_records = self._usage.counts
            ends.append(self._usage.note)
        self._status = status
        self._adapters = adapters
        self._traces = traces
        self._scheduler = scheduler
        self.loaded = trio.Event()  # the model, and the tokenizer
        self._lane: TokenizerLane  # set by then
        # As many as there are places for requests: `submit` never finds it full.
        to_tokenizer, self._requests = trio.open_memory_channel[ToTokenizer](settings.limits.max_requests)
        self._to_admission, self._tokenized = trio.open_memory_channel[ToAdmission](_TOKENIZED)
        self._held_open = self._requests.clone()  # as in core.py
        self.gateway = Gateway(
            settings.limits,
            tokenizer=to_tokenizer,
            scheduler=scheduler.clone(),
            worker=status,
            accounts=self.accounts,
            quotas=quotas,
            several_tenants=len(settings.key_digests) > 1,
            process=process,
            on_end=ends,
        )

    def start(
        self,
        nursery: trio.Nursery,
        text: TextTokenizer,
        ready: Ready,
        texts: trio.MemoryReceiveChannel[ToDetokenizer] | None,
    ) -> None:
        """Run them in `nursery`. Without `texts`, the caller must run the detokenizer."""
        gateway, lane = self.gateway, TokenizerLane(text, ready)
        to_grammar, grammars = trio.open_memory_channel[ToGrammar](_TOKENIZED)
        opening = OpenCompiler(
            model=self.settings.engine.model, vocab_size=ready.vocab_size, eos_token_ids=ready.eos_token_ids
        )
        self._lane = lane
        if self._usage is not None:
            nursery.start_soon(self._usage.run)
        nursery.start_soon(
            partial(run_tokenizer, self._requests, self._to_admission, to_grammar, lane=lane, gateway=gateway)
        )
        nursery.start_soon(partial(run_grammar, grammars, self._to_admission.clone(), opening=opening, gateway=gateway))
        nursery.start_soon(
            partial(run_admission, self._tokenized, ready=ready, gateway=gateway, scheduler=self._scheduler.clone())
        )
        if texts is not None:
            nursery.start_soon(
                partial(run_detokenizer, texts, tokenizer=text, gateway=gateway, scheduler=self._scheduler.clone())
            )

    async def open(self) -> None:
        """Try the adapters of the command line, and serve. Raises EngineLoadError if the worker cannot use one."""
        for adapter in self._adapters.by_name.values():
            if adapter.load:
                continue  # this process came later: it was tried when a client had it loaded
            try:
                await try_adapter(self.gateway, self.model_name, adapter)
            except ApiError as error:
                raise EngineLoadError("invalid_checkpoint", f"--lora {adapter.name}: {error.message}") from None
        self.loaded.set()

    def detokenizer(self, text: TextTokenizer) -> Detokenizer:
        """For a caller that already has the texts and needs no further turn of the event loop."""
        return Detokenizer(tokenizer=text, gateway=self.gateway, scheduler=self._scheduler)

    async def end(self, last_word: ApiError) -> None:
        """Give every stream its terminal event, whatever ended the engine: its writer may still be running."""
        self.gateway.refuse_new("shutting_down", "the engine has stopped")
        self.gateway.fail_all(last_word)
        self._held_open.close()
        if self._usage is not None:
            await self._usage.end()
        if self._traces is not None:
            with trio.CancelScope(shield=True):  # at most traces.FLUSH_SECONDS
                await trio.to_thread.run_sync(self._traces.close)

    # What a `Server` (observe/server.py) has of this process alone.

    @property
    def served(self) -> Self:
        """It has one model."""
        return self

    @property
    def ready(self) -> Ready | None:
        return self._status.ready

    @property
    def draining(self) -> bool:
        return self.gateway.refuses_new

    def begin_drain(self) -> None:
        self.gateway.refuse_new("shutting_down", "the server is shutting down")

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        return self._adapters.by_name

    async def tried_adapter(self, name: str, path: str, *, replaces: bool) -> Adapter:
        """A new adapter that the worker can use. Raises ApiError."""
        self._adapters.check_new(name, replaces=replaces)
        adapter = Adapter(name, path, time.time_ns())
        await try_adapter(self.gateway, self.model_name, adapter)
        return adapter

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        await self.loaded.wait()
        return await self._lane.tokenize(prompt)

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        await self.loaded.wait()
        return await self._lane.detokenize(ids)

    async def tokenizer_info(self) -> TokenizerInfo:
        await self.loaded.wait()
        return self._lane.info()

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Explain a request that this process accepted."""
        history = self.gateway.history(wanted, tenant)
        if history is None:
            return None
        standing = await self.standing(history.id) if history.finished is None else None
        return explain(history, standing, self.gateway.places.share(tenant), self._status.trouble)

    @abstractmethod
    async def standing(self, id: str) -> Standing | None:
        """Where a request is in the scheduler; None if it is not there."""
