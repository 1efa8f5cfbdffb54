"""SchedulerState: every decision of the scheduler, without clock and channels. Messages in, steps and texts out.

A request ends with its last choice, or as a whole (`_drop`, `_fail`). Either way the detokenizer gets exactly one
message about it. `now` is always seconds of the front's clock.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import assert_never

from msgspec import structs

from ...protocol.events import FinishReason
from ...protocol.explanation import Standing
from ...protocol.messages import (
    AdapterGone,
    Admit,
    Cancel,
    ChoiceTokens,
    Credit,
    DropRequest,
    EngineFailed,
    StepTokens,
    Stop,
    ToDetokenizer,
    ToScheduler,
    WorkerLost,
    WorkerReady,
)
from ...protocol.reports import SchedulerStatistics, SchedulerTotals
from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import (
    AdapterFailed,
    AdapterReady,
    BlockCopy,
    GrammarFailed,
    GrammarReady,
    Preparation,
    Ready,
    Step,
    StepDone,
    StepFailed,
)
from ..flight import Flight
from ..supervisor.step_cost import work_of
from .apart import Apart
from .background import Pace, give_way, wants_step
from .blame import Conviction, Excuses, blame
from .blocks import blocks_for
from .first_token import too_late
from .live_table import LiveTable
from .plan import plan_step
from .queues import Queues
from .reach import foresee
from .sequence import LiveRequest, Sequence
from .sharing import Sharing
from .standing import StartRate, WaitReasons
from .steady_plan import plan_steady
from .step_plan import EVERYBODY, StepLimits, StepTurn
from .step_record import step_record
from .step_results import LENGTH, apply_step, choice_tokens


class SchedulerState:
    """The state that the scheduler actor owns."""

    def __init__(
        self,
        *,
        secret: bytes,
        max_losses: int,
        outbox_tokens: int = 256,
        stall_timeout: float = 60.0,
        max_adapters: int = 16,  # in the worker
        weights: Mapping[str, float] | None = None,  # of tenants, of their share; 1 of all others
        most_blocks: Mapping[str, int] | None = None,  # of tenants with a limit
        max_steps_in_flight: int = 2,  # the worker starts the next step while the last one's answer travels
        flight: Flight | None = None,
    ) -> None:
        """`secret` keys the names of KV blocks. A request fails when `max_losses` workers in a row die computing it.

        Rows that may bring several tokens allow two steps in flight: a third would begin behind tokens not known yet.
        """
        self.table = LiveTable(secret, stall_timeout, max_adapters, weights, most_blocks)
        self.in_flight: dict[int, Step] = {}
        self.totals = SchedulerTotals()
        self.flight = flight or Flight()
        self.waits = WaitReasons(self.table.queues, self.table.pool, None, {}, (), None, 0)
        self._max_losses = max_losses
        self._outbox_tokens = outbox_tokens
        self._failure = ""  # why no worker will start again
        self._next_step = 1
        self._convictions: list[Conviction] = []
        self._apart = Apart()
        self._excuses = Excuses(max_losses)
        self._start_rate = StartRate()
        self._sharing = Sharing(max_steps_in_flight)
        self._texts: list[ToDetokenizer] = []
        self._batch_texts: list[ToDetokenizer] = []  # the same, of background requests
        self._background_steps: set[int] = set()  # of those in flight
        self._pace = Pace()

    def handle(self, message: ToScheduler, now: float) -> None:
        """Take in one message."""
        table = self.table
        table.now = now
        match message:
            case StepDone():
                self._apply(message)
            case Admit():
                self._admit(message)
            case Credit(id=id, tokens=tokens):
                table.grant(id, tokens)
            case Stop(id=id, index=index, tokens_kept=kept):
                if (live := table.requests.get(id)) and (sequence := live.choices.get(index)):
                    table.finish(sequence, kept)
            case Cancel(id=id, reason=reason):
                if live := table.requests.get(id):
                    self._drop(live, reason)
            case AdapterGone(adapter=adapter):
                table.adapters.retire(adapter)
            case GrammarReady(grammar=number):
                table.grammars.done(number)
            case GrammarFailed(grammar=number, message=text):
                self._fail(table.with_grammar(number), "grammar_failed", text)
                table.grammars.failed(number)
            case AdapterReady(adapter=number):
                table.adapters.done(number)
            case AdapterFailed(adapter=number, message=text):
                self._fail(table.with_adapter(number), "adapter_failed", f"The LoRA adapter cannot be loaded: {text}")
                table.adapters.failed(number)
            case StepFailed(step=step, message=text):
                # On a GPU a step's fault may show when a later one is launched.
                flying = [each for number, each in self.in_flight.items() if number <= step]
                self._lose_worker(flying, text, crashed=True)
            case WorkerLost(reason=reason, crashed=crashed):
                self.totals.worker_losses += 1
                if self.waits.limits is not None:  # otherwise it said what failed before it exited
                    self._lose_worker(self.in_flight.values(), reason, crashed=crashed)
            case WorkerReady(ready=ready):
                self._meet_worker(ready)
            case EngineFailed(reason=reason):
                self._failure = f"The engine is not available: {reason}"
                self._change_worker(None)
                self._fail(tuple(table.requests.values()), "engine_unavailable", self._failure)
            case _:
                assert_never(message)

    def expire(self, now: float) -> None:
        """End requests whose deadline has passed or whose reader has stalled."""
        for id, reason in self.table.due(now).items():
            self._drop(self.table.requests[id], reason)

    def plan(self) -> Step | None:
        """The next step, or None if there is nothing to compute or enough in flight."""
        limits, most = self.waits.limits, self._sharing.most_in_flight(self.table.queues, self.table.now)
        if limits is None or len(self.in_flight) >= most:
            return None
        if not self.table.quarantine.suspects:
            return self._plan_together(limits)
        preparing = any(live.awaits_preparation for live in self.table.requests.values())
        return self._apart.plan(
            [] if preparing else self.table.quarantine.able(),
            self.in_flight,
            lambda: self._plan_together(limits),
            lambda suspect: self._plan_alone(suspect, limits),
        )

    def _plan_alone(self, suspect: Sequence, limits: StepLimits) -> Step | None:
        queues = self.table.queues_of(suspect.live)
        step = self._plan_for(queues, limits, StepTurn(only=suspect))
        if step and queues is self.table.background:
            self._background_steps.add(step.step)
        return step

    def _plan_together(self, limits: StepLimits) -> Step | None:
        """A step of everybody but suspects."""
        table, background = self.table, self.table.background
        if table.queues and (not background or wants_step(table.queues)):
            if background and (left := give_way(table.queues, background, table.pool, limits)):
                self.totals.preemptions += left.preempted
                table.dropped.extend(left.dropped)
            step = self._plan_for(table.queues, limits)
            if step is not None or self.in_flight or not background:
                return step
        # An interactive request waits for the background steps in flight: on a CPU for one at most.
        if not background or (self._sharing.on_cpu and self.in_flight):
            return None
        step = self._plan_for(background, self._pace.limits(limits))
        if step is not None:
            self._background_steps.add(step.step)
        return step

    def _plan_for(self, queues: Queues, limits: StepLimits, turn: StepTurn = EVERYBODY) -> Step | None:
        """A step for the sequences of these queues whose turn it is, which is then in flight."""
        table, suspects, alone = self.table, self.table.quarantine.suspects, turn is not EVERYBODY
        if suspects and not alone:
            turn = StepTurn(apart=suspects, kept={suspect.id for suspect in table.quarantine.able()})
        sharing = self._sharing if turn is EVERYBODY and queues is table.queues else None
        fitting = sharing.limits(limits, queues) if sharing else limits
        steady = None if suspects else plan_steady(queues, table.pool, fitting)
        plan = steady or plan_step(queues, table.pool, fitting, turn, sharing)
        if queues is table.queues and not alone:
            self.waits = WaitReasons(queues, table.pool, limits, plan.blocked, plan.full, plan.shortage, table.newest)
            if plan.started:
                self._start_rate.note(len(plan.started), len(queues.waiting), table.now)
        self.totals.preemptions += plan.preempted
        self.totals.displaced += plan.displaced
        self.totals.prefill_tokens += plan.prefill_tokens
        table.dropped.extend(plan.dropped)
        for sequence in plan.started:
            self._start(sequence)
        table.pool.check_step(table.tables())  # raises LedgerError, which stops the engine
        if not plan.chunks:
            return None
        step = Step(
            step=self._next_step,  # never reused, so a lost worker's answer is recognised
            chunks=tuple(plan.chunks),
            new=tuple(plan.new),
            copies=tuple(BlockCopy(source, target) for target, source in plan.copies.items()),
            dropped=tuple(table.dropped),
        )
        self._next_step += 1
        table.last_step = step.step
        table.dropped.clear()
        self.in_flight[step.step] = step
        self.flight.steps.append(step_record(step, plan, table.now))
        return step

    def take_preparations(self) -> list[Preparation]:
        """What the worker must begin to prepare before it gets another step."""
        if self.waits.limits is None or self._apart.flying in self.in_flight:
            return []
        return self.table.take_preparations()

    def take_texts(self) -> list[ToDetokenizer]:
        """Messages for the detokenizer, in order."""
        texts, self._texts = self._texts, []
        return texts

    def take_batch_texts(self) -> list[ToDetokenizer]:
        """The same for the batches' own detokenizer."""
        texts, self._batch_texts = self._batch_texts, []
        return texts

    def take_convictions(self) -> list[Conviction]:
        """Requests that failed because workers died of them."""
        convictions, self._convictions = self._convictions, []
        return convictions

    def standing(self, id: str, now: float) -> Standing | None:
        """Where a request is and what it waits for; None if the scheduler does not hold it."""
        live = self.table.requests.get(id)
        if live is None or live.generate.background:
            return None
        return self.waits.standing(live, self._start_rate, now)

    def statistics(self) -> SchedulerStatistics:
        queues, background, pool = self.table.queues, self.table.background, self.table.pool
        return SchedulerStatistics(
            worker_ready=self.waits.limits is not None,
            requests=len(self.table.requests),
            running=len(queues.running),
            parked=len(queues.parked),
            waiting=len(queues.waiting),
            waiting_by_reason=dict(Counter(map(self.waits.obstacle, queues.waiting))),
            background_running=len(background.running) + len(background.parked),
            background_waiting=len(background.waiting),
            steps_in_flight=len(self.in_flight),
            blocks=pool.counts(),
            totals=structs.replace(
                self.totals, evictions=pool.evictions, preemptions=self.totals.preemptions + self.table.sent_back
            ),
            adapters=self.table.adapters.figures(),
        )

    # Requests begin.

    def _admit(self, message: Admit) -> None:
        live = self.table.add(message, credit=self._outbox_tokens)
        if self._failure:
            self._fail([live], "engine_unavailable", self._failure)
            return
        losses = self.table.quarantine.losses_of(live, self.table.now)
        if losses is None:
            text = "A request like this one has crashed the engine: it is refused for some minutes."
            self._fail([live], "quarantined", text)
            return
        if losses:
            for sequence in live.choices.values():
                sequence.losses = losses
                self.table.quarantine.suspect(sequence)
        now, sharing = self.table.now, self._sharing
        if late := sharing.believes(now) and too_late(live, self.waits, sharing.cost, self._start_rate, now):
            self._say(live, [self.table.fail(live, "deadline_unmeetable", *late)])
            return
        self._settle(live)

    def _settle(self, live: LiveRequest) -> None:
        """Fit a request to the worker. End it if the worker is too small for it, or if there is nothing to compute."""
        if self.waits.limits is None:
            return
        total, context = self.table.pool.total, self.waits.limits.context_length
        for sequence in tuple(live.choices.values()):
            sequence.max_total = min(sequence.max_total, context)
            needed = blocks_for(max(sequence.read, sequence.max_total - 1))
            cut = sequence.beams is not None and sequence.read >= sequence.max_total  # it was no answer yet
            if needed > total or sequence.read > context or cut:
                text = f"Prompt and answer need {needed} KV blocks of {BLOCK_SIZE} tokens; the engine has {total}."
                self._fail([live], "context_length_exceeded", f"{text} Shorten them or lower max_tokens.")
                return
            if sequence.max_total <= sequence.read and (sequence.reads_prefix_cache or sequence.remaining <= 0):
                if not sequence.started:
                    self._texts_of(live).append(sequence.opening())
                self._say(live, [choice_tokens(sequence, ending=LENGTH)])
                self.table.finish(sequence)

    def _start(self, sequence: Sequence) -> None:
        self.totals.prompt_tokens += sequence.prompt_tokens
        if sequence.reads_prefix_cache:
            self.totals.prefix_query_tokens += sequence.prompt_tokens
            self.totals.prefix_hit_tokens += sequence.cached_tokens
        self._texts_of(sequence.live).append(sequence.opening())

    def _texts_of(self, live: LiveRequest) -> list[ToDetokenizer]:
        return self._batch_texts if live.generate.background else self._texts

    # Steps come back.

    def _apply(self, done: StepDone) -> None:
        step = self.in_flight.pop(done.step, None)
        if step is None:
            return  # from a lost worker: its sequences are computed again
        self.totals.steps += 1
        self.totals.model_seconds += done.model_duration
        self._sharing.note_step(work_of(step), done.duration, self.table.now)
        self.totals.device_allocations = done.device_allocations
        self.totals.device_compilations = done.device_compilations
        ids, rows, others = apply_step(step, done, self.table, self.totals)
        if len(self.in_flight) == 1 and any(len(row.tokens) > 1 for row in done.rows):  # the next one computes them
            self._foresee(*self.in_flight.values())
        texts = self._texts
        if done.step in self._background_steps:
            self._background_steps.discard(done.step)
            self._pace.note(done.duration)
            texts = self._batch_texts
        if ids or others:
            texts.append(StepTokens(ids=tuple(ids), rows=tuple(rows), others=tuple(others)))
        self.table.step_done(done.step)

    def _foresee(self, step: Step) -> None:
        assert self.waits.limits is not None, "no worker, and a step in flight"
        self.in_flight[step.step] = foresee(step, self.table.sequences, self.waits.limits.max_step_tokens)

    # Requests end.

    def _drop(self, live: LiveRequest, reason: FinishReason) -> None:
        """End a request from outside. What it has generated stays valid."""
        self.table.finish_all(live)
        self._texts_of(live).append(DropRequest(id=live.id, reason=reason))

    def _fail(self, lives: Iterable[LiveRequest], code: str, message: str) -> None:
        for live in lives:
            self._say(live, [self.table.fail(live, code, message)])

    def _say(self, live: LiveRequest, choices: list[ChoiceTokens]) -> None:
        self._texts_of(live).append(StepTokens(others=tuple(choices)))

    # Workers come and go.

    def _lose_worker(self, steps: Iterable[Step], reason: str, *, crashed: bool) -> None:
        """A request that kills every worker must not use up the restarts, and with them the engine."""
        convictions = blame(self.table, steps, reason, crashed=crashed, max_losses=self._max_losses)
        for conviction in convictions:
            live, losses = conviction.live, conviction.losses
            self.totals.convicted += 1
            if live.id in self.table.requests:
                text = f"The engine died {losses} times while computing this request: {reason}"
                self._fail([live], "engine_error", text)
        if convictions:
            self._convictions += convictions
            self.totals.excused_losses += self._excuses.losses(convictions, self.totals.generated_tokens)
        self._change_worker(None)  # the next one reports when it is ready

    def _meet_worker(self, ready: Ready) -> None:
        assert ready.memory.block_size == BLOCK_SIZE, ready.memory
        limits = StepLimits(
            max_step_tokens=ready.max_step_tokens, max_running=ready.max_running, context_length=ready.context_length
        )
        self._sharing.on_cpu = ready.device == "cpu"
        self._change_worker(limits, ready.memory.num_blocks)
        for live in tuple(self.table.requests.values()):
            self._settle(live)

    def _change_worker(self, limits: StepLimits | None, num_blocks: int | None = None) -> None:
        """Forget the last worker's KV cache and steps in flight. `limits` None: there is no worker now."""
        self.in_flight.clear()
        self._background_steps.clear()
        self.totals.preemptions += self.table.forget_worker(num_blocks)
        self.waits = WaitReasons(self.table.queues, self.table.pool, limits, {}, (), None, 0)
