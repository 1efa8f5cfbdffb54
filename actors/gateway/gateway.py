"""The record of live requests: the web's interface to the engine, and the only place where a request ends.

It is not an actor: it has no task and no inbox. Web and actors call it directly, in the order of a request's life:

    web          `submit`, which passes the request on to the tokenizer; `grant`, `cancel`
    tokenizer    `is_live`, `fail`
    grammar      `is_live`, `fail`, `compiling`
    admission    `is_live`, `fail`, `admitted`
    detokenizer  `started`, `deliver` or `deliver_text`, and `flush` at the end of a step; `complete`, `fail`

Contract: every method is synchronous and may be called at any time; unknown ids are fine. An accepted request gets
exactly one terminal event, written only by `finish`, and one line in the log `triolet.requests`. The gateway knows
the times and counts of live requests only; it knows neither text nor tokens.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

import msgspec
import trio

from ...protocol.errors import ApiError, ErrorCode
from ...protocol.events import (
    ChoiceFinished,
    Failed,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    StreamEvent,
    TerminalEvent,
    Token,
    Vector,
)
from ...protocol.messages import Cancel, Credit, ToScheduler, ToTokenizer
from ...protocol.reports import KeptFigures
from ...protocol.requests import Generate
from ...protocol.settings import LimitSettings
from ..supervisor.worker_status import WorkerStatus
from .accounts import Accounts, TokenTimes
from .credit import CreditLine
from .history import History, RecentRequests, StreamRecord
from .outbox import Outbox
from .places import RETRY_SECONDS, Places
from .quotas import Quotas

_LOG: Final = logging.getLogger("triolet.requests")


def process_name() -> str:
    """A name unique to this process and this start."""
    return f"{os.getpid():x}{secrets.token_hex(4)}"


class Gateway:
    """Accepts requests, holds their outboxes, passes credit on, and ends requests."""

    def __init__(
        self,
        limits: LimitSettings,
        *,
        tokenizer: trio.MemorySendChannel[ToTokenizer],
        scheduler: trio.MemorySendChannel[ToScheduler],
        worker: WorkerStatus | None = None,
        accounts: Accounts | None = None,
        quotas: Quotas | None = None,
        several_tenants: bool = False,
        process: str | None = None,
        on_end: Sequence[Callable[[History], None]] = (),
    ) -> None:
        """`process` is the prefix of every id; the default is unique to this process and this start."""
        self.worker = worker or WorkerStatus()
        self.accounts = accounts or Accounts()
        self.quotas = quotas or Quotas()
        self._outbox_tokens = limits.outbox_tokens
        self.kept = KeptFigures()  # the web keeps them
        self.places = Places(limits.max_requests, several_tenants=several_tenants)
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._live: dict[str, StreamRecord] = {}
        self._refusal: tuple[ErrorCode, str] | None = None
        self.on_news: set[Callable[[], None]] = set()  # called when requests are refused from now on, and of the worker
        self.worker.on_change.add(self._tell_news)
        self._process = process or process_name()
        self._numbers = count(1)
        self._idle = trio.lowlevel.ParkingLot()
        self._unflushed: list[Outbox] = []
        self._times = TokenTimes(self.accounts)
        self._recent = RecentRequests()
        self._on_end = on_end  # each is called once for every request, when it has ended

    def new_id(self) -> str:
        """An id for the next request, unique across restarts and processes."""
        return f"{self._process}-{next(self._numbers):x}"

    def is_own(self, request_id: str) -> bool:
        """Whether this process made the id."""
        return request_id.startswith(f"{self._process}-")

    def submit(self, request: Generate) -> Outbox:
        """Accept a request; its events come from the outbox. Raises `ApiError` if there is no place."""
        assert request.id not in self._live, request.id
        if not request.arrival_time:
            request = msgspec.structs.replace(request, arrival_time=trio.current_time())
        tenant, now = request.tenant, trio.current_time()
        try:
            if (refusal := self._refusal_of_all()) is not None:
                raise ApiError(*refusal, retry_after=RETRY_SECONDS)
            try:
                self.quotas.check(tenant, now, background=request.background)
            except ApiError:
                if key := self.quotas.name(tenant):
                    self.accounts.key_refused[key] += 1
                raise
            self.places.check(tenant)
            try:
                self._tokenizer.send_nowait(request)
            except trio.WouldBlock:
                raise self.places.full() from None
        except ApiError as error:
            self.accounts.refused[error.code] += 1
            raise
        id = request.id
        credit = CreditLine(self._outbox_tokens, partial(self._pass_on, id))
        outbox = Outbox(id, credit.take)
        self._live[id] = StreamRecord(request, outbox, credit, time.time() - trio.current_time())
        self.places.take(tenant)
        self.quotas.begin(tenant, now, background=request.background)
        self.accounts.count_accepted(request.adapter.name if request.adapter else None)
        self._recent.begin(tenant, request.name, id)
        return outbox

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request on behalf of its client; harmless if it has already ended."""
        self.complete(request_id, reason)

    def grant(self, request_id: str, tokens: int) -> None:
        """The client grants credit for `tokens` more tokens."""
        if live := self._live.get(request_id):
            live.credit.grant(tokens)

    def refuse_new(self, code: ErrorCode, message: str) -> None:
        """From now on refuse new requests with this error; accepted ones continue."""
        self._refusal = (code, message)
        self._tell_news()

    def _tell_news(self) -> None:
        for tell in tuple(self.on_news):
            tell()

    @property
    def refuses_new(self) -> bool:
        """Whether new requests are refused, since the server drains."""
        return self._refusal is not None

    def _refusal_of_all(self) -> tuple[ErrorCode, str] | None:
        if self._refusal is None and self.worker.state == "failed":
            return "engine_unavailable", f"the engine is not available: {self.worker.reason}"
        return self._refusal

    def is_live(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def live_requests(self) -> int:
        return len(self._live)

    def history(self, wanted: str, tenant: str) -> History | None:
        """A live or recently ended request of this tenant, by id or name."""
        id = self._recent.id_of(tenant, wanted)
        live = self._live.get(id)
        history = live.history() if live else self._recent.ended(id)
        return history if history is not None and history.tenant == tenant else None

    async def wait_idle(self) -> None:
        """Wait until no request is live."""
        await trio.lowlevel.checkpoint()
        while self._live:
            await self._idle.park()

    # Called by the actors, in the order of a request's life.

    def compiling(self, request_id: str) -> None:
        """Its prompts are tokenised; its grammar waits to be compiled, or is being compiled."""
        if live := self._live.get(request_id):
            live.compiling = True

    def admitted(self, request_id: str, prompt_tokens: int) -> None:
        """Its prompts are tokenised, and it has been passed on to the scheduler."""
        if live := self._live.get(request_id):
            live.prompt_tokens = prompt_tokens
            live.tokenized_at = trio.current_time()

    def started(self, request_id: str, cached_tokens: int = 0) -> None:
        """A choice is in its first step. The first one starts the stream."""
        live = self._live.get(request_id)
        if live is None:
            return
        live.cached_tokens += cached_tokens
        if live.started_at is None:
            live.started_at = trio.current_time()
            self.accounts.queue_time.observe(live.started_at - live.request.arrival_time)
            self._put(live, Started(id=request_id, model=live.request.served_as, prompt_tokens=live.prompt_tokens))

    def stream(self, request_id: str) -> StreamRecord | None:
        """A live request, for `deliver_text`."""
        return self._live.get(request_id)

    def deliver(self, event: PromptTokens | Vector | Token | ChoiceFinished) -> None:
        """Text for the stream, the ids or the vector of a choice's prompt, or the end of a choice."""
        live = self._live.get(event.id)
        if live is None:
            return
        if isinstance(event, ChoiceFinished):
            live.completion_tokens += event.stop_tokens
            live.last_token_at[event.index] = 0.0
            live.reasons.append(event.reason)
        elif isinstance(event, Token) and event.tokens:
            self._times.note(live, event.index, event.tokens, trio.current_time())
            if event.kind == "reasoning":
                live.reasoning_tokens += event.tokens
        self._put(live, event)

    def deliver_text(self, live: StreamRecord, index: int, text: str, tokens: int, now: float) -> None:
        """The same as `deliver` of a `Token` with only these fields, for a known stream; harmless after its end."""
        outbox = live.outbox
        if not outbox.ended:
            self._times.note(live, index, tokens, now)
            outbox.put_text(index, text, tokens)
            self._unflushed.append(outbox)

    def flush(self) -> None:
        """Call it at the end of a step: passes all delivered events to their readers."""
        self._times.settle()
        outboxes, self._unflushed = self._unflushed, []
        for outbox in outboxes:
            outbox.flush()

    def complete(self, request_id: str, reason: FinishReason) -> None:
        """End a request with its usage and times."""
        live = self._live.get(request_id)
        if live is None:
            return
        timing = live.timing(trio.current_time())
        self.finish(request_id, Finished(id=request_id, reason=reason, usage=live.usage(), timing=timing))

    def fail(self, request_id: str, error: ApiError) -> None:
        """End a request with an error."""
        failed = Failed(
            id=request_id,
            code=error.code,
            message=error.message,
            param=error.param,
            retry_after=error.retry_after,
        )
        self.finish(request_id, failed)

    def fail_all(self, error: ApiError) -> None:
        """End all remaining requests."""
        for request_id in tuple(self._live):
            self.fail(request_id, error)

    def finish(self, request_id: str, event: TerminalEvent) -> None:
        """The only writer of terminal events. The first one counts; later ones are ignored."""
        live = self._live.pop(request_id, None)
        if live is None:
            return
        live.outbox.put(event)
        live.outbox.flush()
        self.places.give_back(live.request.tenant)
        # End it in the scheduler too; if the scheduler ended it, this message does nothing.
        self._to_scheduler(Cancel(id=request_id, reason=event.reason if isinstance(event, Finished) else "error"))
        self._account(live, event)
        if not self._live:
            self._idle.unpark_all()

    def _put(self, live: StreamRecord, event: StreamEvent) -> None:
        live.outbox.put(event)
        self._unflushed.append(live.outbox)

    def _account(self, live: StreamRecord, event: TerminalEvent) -> None:
        now = trio.current_time()
        history = live.history(event, now)
        self.accounts.finished[history.reason or "error"] += 1
        if isinstance(event, Failed):
            self.accounts.refused[event.code] += 1
        self.accounts.prompt_tokens += live.prompt_tokens
        self.accounts.completion_tokens += live.completion_tokens
        self.accounts.cached_tokens += live.cached_tokens
        self.accounts.observe_end(history, now)
        key, used = self.quotas.name(history.tenant), live.prompt_tokens + live.completion_tokens
        if isinstance(event, Failed) and live.started_at is None:  # refused, or given up while it waited
            used = 0
        self.quotas.end(history.tenant, used, now, background=live.request.background)
        if key:
            self.accounts.key_tokens[key] += used
        self._recent.end(history)
        for tell in self._on_end:
            tell(history)
        line, facts = live.terminal_record(event, now, key)
        _LOG.info("%s", line, extra={"fields": facts})

    def _pass_on(self, request_id: str, credit: int) -> None:
        if request_id in self._live:
            self._to_scheduler(Credit(id=request_id, tokens=credit))

    def _to_scheduler(self, message: Cancel | Credit) -> None:
        # Broken: the engine is ending with all its requests; the code that ends it tells their clients.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self._scheduler.send_nowait(message)
