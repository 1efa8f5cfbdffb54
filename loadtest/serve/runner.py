"""The loops. Closed: each of N clients asks again when it was answered. Open: requests start on schedule, whether or
not earlier ones were answered.

The loop decides when each request starts; a transport sends it. Every request becomes one record, however it ends.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Literal

import trio

from ..client.ending import BY_CHOICE, Fault, Outcome
from .arrivals import Ramp, start_times
from .bodies import body_of
from .exchange import LoadExchange, LoadRequest, Transport
from .record import Record
from .settings import LoadSettings
from .workload import ConversationPlan, PlannedTurn, Workload

WATCH_SECONDS = 0.25  # how often stalled requests are looked for


class Progress:
    """The run's current state, read by the live view."""

    def __init__(self) -> None:
        self.begun: float | None = None
        self.issuing_ended: float | None = None
        self.in_flight: set[LoadExchange] = set()
        self.waiting = 0  # for a slot under --max-in-flight
        self.waited = 0  # in the measured part; requests of the warm-up are in no figure
        self.pieces_of_ended = 0
        self.records: list[Record] = []
        self.measured_ended = 0  # counted as records arrive: scanning all records would delay the loop
        self.failures: Counter[Outcome] = Counter()

    @property
    def pieces(self) -> int:
        return self.pieces_of_ended + sum(len(exchange.arrivals) for exchange in self.in_flight)


class Runner:
    def __init__(
        self,
        settings: LoadSettings,
        workload: Workload,
        transport: Transport,
        *,
        model: str | None = None,
        on_record: Callable[[Record], None] | None = None,
        recorded_times: Sequence[float] = (),
    ) -> None:
        self.progress = Progress()
        self._settings = settings
        self._workload = workload
        self._transport = transport
        self._model = model
        self._on_record = on_record
        self._recorded_times = recorded_times
        self._numbers = count()
        self._measured = 0  # requests started in the measured part
        self._stopping = trio.Event()
        self._grace_seconds = settings.grace_seconds
        self._ended_as: Literal["unfinished", "cancelled"] = "unfinished"
        self._places = trio.Semaphore(settings.max_in_flight)

    @property
    def origin(self) -> float:
        assert self.progress.begun is not None
        return self.progress.begun

    async def run(self) -> None:
        """Run until every requested exchange has started and ended."""
        self.progress.begun = trio.current_time()
        async with trio.open_nursery() as beside:
            beside.start_soon(self._watch)
            beside.start_soon(self._end_after_grace)
            async with trio.open_nursery() as clients:
                if self._settings.arrivals is None:
                    clients.start_soon(self._close_at_end)
                    for _ in range(self._settings.concurrency):
                        clients.start_soon(self._ask_again_and_again)
                else:
                    await self._open_loop(clients)
            beside.cancel_scope.cancel()

    def stop(self, *, at_once: bool = False) -> None:
        """Start no more requests. `at_once`: also end the running ones, which does not count as failure."""
        if at_once:
            self._grace_seconds, self._ended_as = 0.0, "cancelled"
        if not self._stopping.is_set():
            self._stopping.set()
            self.progress.issuing_ended = trio.current_time()

    async def _end_after_grace(self) -> None:
        """After the last start, running requests get `grace_seconds`. Then they are ended and recorded as such."""
        await self._stopping.wait()
        ends = trio.current_time()
        while True:
            await trio.sleep(min(WATCH_SECONDS, max(0.0, ends + self._grace_seconds - trio.current_time())))
            if trio.current_time() < ends + self._grace_seconds:
                continue
            for exchange in self.progress.in_flight:  # repeatedly: some only now get their slot
                exchange.why = self._ended_as
                exchange.scope.cancel()
            await trio.sleep(WATCH_SECONDS)

    async def _close_at_end(self) -> None:
        """A closed loop ends by its clock, or when its clients have started the requested number of requests."""
        with trio.CancelScope() as scope:
            if self._settings.seconds is not None:
                scope.deadline = self.origin + self._settings.warmup_seconds + self._settings.seconds
            await self._stopping.wait()
        self.stop()

    async def _ask_again_and_again(self) -> None:
        plan = self._next_plan()
        while self._may_begin(trio.current_time()):
            await self._converse(plan, None)
            plan = self._next_plan()

    def _next_plan(self) -> ConversationPlan:
        """Prepare the request before its start time, so that this cost is in no latency."""
        return self._workload.conversation(next(self._numbers))

    async def _open_loop(self, clients: trio.Nursery) -> None:
        settings = self._settings
        assert settings.arrivals is not None
        until = None if settings.seconds is None else settings.warmup_seconds + settings.seconds
        if until is None and isinstance(settings.arrivals, Ramp):
            until = settings.arrivals.seconds
        for start in start_times(settings.arrivals, settings.seed, self._recorded_times):
            if until is not None and start >= until:
                break
            plan = self._next_plan()
            with trio.move_on_at(self.origin + start):
                await self._stopping.wait()
            if not self._may_begin(self.origin + start):
                return
            clients.start_soon(self._converse, plan, self.origin + start)
        if until is not None:
            with trio.move_on_at(self.origin + until):
                await self._stopping.wait()
        self.stop()

    def _may_begin(self, intended: float) -> bool:
        """Counts the requests of the measured part; the last of them stops the run."""
        if self._stopping.is_set():
            return False
        if intended - self.origin >= self._settings.warmup_seconds:
            self._measured += 1
            if self._measured == self._settings.requests:
                self.stop()
        return True

    async def _converse(self, plan: ConversationPlan, intended: float | None) -> None:
        """A conversation whose first request may start. Without a time, its intended start is its actual start."""
        said: list[tuple[str, str]] = []
        for index, turn in enumerate(plan.turns):
            if index:
                with trio.move_on_after(turn.think_seconds):
                    await self._stopping.wait()
                intended = None
                if not self._may_begin(trio.current_time()):
                    return
            said.append((turn.text, ""))
            exchange = await self._exchange(plan, index, turn, said, intended)
            if exchange.outcome != "ok":
                return
            said[-1] = (turn.text, "".join(exchange.texts))

    async def _exchange(
        self,
        plan: ConversationPlan,
        index: int,
        turn: PlannedTurn,
        said: Sequence[tuple[str, str]],
        intended: float | None,
    ) -> LoadExchange:
        settings, progress, client = self._settings, self.progress, plan.client
        ask = LoadRequest(
            body_of(settings, self._model, said, turn.output_tokens, client.priority),
            client.tenant.key,
            cancel_after=round(settings.mix.cancel.value) if client.behaviour == "cancels" else None,
            pieces_per_second=settings.mix.slow.value if client.behaviour == "slow" else None,
            keep_text=index + 1 < len(plan.turns),
        )
        if intended is None:
            intended = trio.current_time()
        if self._places.value == 0 and intended - self.origin >= settings.warmup_seconds:
            progress.waited += 1
        progress.waiting += 1
        async with self._places:
            progress.waiting -= 1
            exchange = LoadExchange(intended, trio.current_time())
            progress.in_flight.add(exchange)
            exchange.scope.deadline = exchange.started + settings.timeout_seconds
            with exchange.scope:
                try:
                    await self._transport.perform(ask, exchange)
                except Fault as fault:
                    exchange.fail(fault.outcome, fault.detail, fault.status)
            if exchange.scope.cancelled_caught:
                exchange.fail(exchange.why, f"given up after {trio.current_time() - exchange.started:.1f} s")
            self._keep(exchange, plan, index, turn)
        return exchange

    def _keep(self, exchange: LoadExchange, plan: ConversationPlan, index: int, turn: PlannedTurn) -> None:
        progress = self.progress
        record = exchange.record(
            plan, index, turn, origin=self.origin, ended=trio.current_time(), warmup=self._settings.warmup_seconds
        )
        progress.in_flight.discard(exchange)
        progress.pieces_of_ended += len(exchange.arrivals)
        progress.records.append(record)
        progress.measured_ended += record.phase == "measured"
        if record.outcome not in BY_CHOICE:
            progress.failures[record.outcome] += 1
        if self._on_record is not None:
            self._on_record(record)

    async def _watch(self) -> None:
        """End answers that have stalled. A timer per token would cost more than the token."""
        stall = self._settings.stall_seconds
        while True:
            await trio.sleep(min(WATCH_SECONDS, stall))
            oldest = trio.current_time() - stall
            for exchange in self.progress.in_flight:
                if exchange.arrivals and exchange.arrivals[-1] < oldest:
                    exchange.why = "stalled"
                    exchange.scope.cancel()
