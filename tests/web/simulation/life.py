"""One simulated life of the whole server, from a seed: the real web on the real transport, the real engine and its
supervisor around a fake model, clients of every kind, and faults wherever something waits.

What is not real: sockets (kernel.py), the worker process (process.py), time and threads. At the end of a life every
request has had one terminal event and one usage record, each answer is what the model says, health has told the truth,
and nothing is left: no task, no connection, no KV block, no task in the event loop.
"""

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import msgspec
import trio
import trio.testing
from werkzeug.routing import Rule

from triolet.actors import core, engine
from triolet.actors.engine import Engine, run_engine
from triolet.actors.gateway import gateway as gateway_module
from triolet.actors.gateway.history import History
from triolet.actors.gateway.outbox import Outbox
from triolet.actors.supervisor import supervisor
from triolet.actors.tokenizer.chat_template import ChatTemplate
from triolet.actors.tokenizer.chat_templates import ChatTemplates
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.cli.serving import serve_engine
from triolet.protocol.requests import Generate
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings
from triolet.protocol.steps import Step
from triolet.web import app as app_module
from triolet.web.generation import resumable_answer
from triolet.web.transport.sending import LAST_WORDS_SECONDS

from ...actors.simulation.device import VOCABULARY, FakeDevice
from ...actors.simulation.front import SimulationError, require
from ...actors.simulation.house import one_character_tokenizer
from ...actors.simulation.scenario import Scenario
from ...actors.simulation.worker import ready
from ...actors.simulation.world import Outcome, check_every_plan, check_nothing_left, deterministic
from .asks import Ask, draw_ask
from .kernel import Kernel
from .process import SimulatedProcess
from .visitors import HABITS, LONG, Visitor

TRUTH_SECONDS = 2.1  # within which health says so
FORGET_SECONDS = 1.0  # within which the request of a client that has left ends
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def simulate_web(seed: int) -> Outcome:
    """Live one life; raises what goes wrong."""
    rng = deterministic(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    house = House(rng)
    with house.in_place(), errors_of_the_web() as errors:
        trio.run(house.live, clock=clock)
    require(not errors, f"the web has logged errors: {errors}")
    totals = house.engine._core.state.totals
    return Outcome(
        digest=house.digest.hexdigest()[:16],
        seconds=clock.current_time(),
        steps=totals.steps,
        preemptions=totals.preemptions,
        worker_losses=totals.worker_losses,
        prefix_hit_tokens=totals.prefix_hit_tokens,
        copies=house.copies,
        ends=dict(Counter(house.ends)),
    )


@cache
def text_tokenizer() -> TextTokenizer:
    template = ChatTemplate(TEMPLATE, {})
    return TextTokenizer(one_character_tokenizer().tokenizer, ChatTemplates(template, template))


@contextmanager
def errors_of_the_web() -> Generator[list[str]]:
    """What the web thinks impossible, it logs: an exception that left a connection, or a handler."""
    log, found = logging.getLogger("triolet.http"), list[str]()

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage() + repr(record.exc_info and record.exc_info[1]))

    handler = Keeper(logging.ERROR)
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


class House:
    """The server, its clients and what is known of both."""

    def __init__(self, rng: random.Random) -> None:
        self.engine: Engine
        self.digest = hashlib.sha256()
        self.copies = 0
        self.ends: list[str] = []
        self.kernel = Kernel(rng)
        self._rng = rng
        self._draw()
        self._processes: list[SimulatedProcess] = []
        self._records = dict[str, History]()  # by id
        self._seeds = dict[str, int]()  # of requests, by id: each has its own
        self._nursery: trio.Nursery
        self._stop: trio.Event
        self._started: trio.Event
        self._stopped_at: float | None = None
        self._ended_at = 0.0

    def _draw(self) -> None:
        rng = self._rng
        num_blocks = rng.choice((8, 12, 20, 64))
        context = min(num_blocks * 64, 640)
        self._faults = rng.choice((0.0, 0.0, 0.002, 0.01))
        self.scenario = Scenario(
            num_blocks=num_blocks,
            max_step_tokens=rng.choice((16, 64, 256)),
            max_running=rng.choice((1, 2, 8, 16)),
            max_steps_in_flight=2,
            outbox_tokens=rng.choice((4, 16, 64)),
            stall_timeout=rng.choice((5.0, 20.0)),
            context_length=context,
            death_rate=0.0,
            max_deaths=0,
            poison_rate=0.001 if rng.random() < 0.2 else 0.0,
            requests=(),
        )
        self.settings = ServeSettings(
            engine=EngineSettings(model="/"),
            served_model_name="sim",
            limits=LimitSettings(
                max_requests=rng.choice((3, 1024, 1024)),
                outbox_tokens=self.scenario.outbox_tokens,
                max_socket_requests=4,
            ),
            api_keys=("one", "two"),
            stall_timeout=self.scenario.stall_timeout,
            send_timeout=rng.choice((3.0, 30.0)),
            keep_alive_timeout=rng.choice((5.0, 30.0)),
            keep_alive_interval=rng.choice((0.5, 5.0)),
            drain_timeout=rng.choice((0.2, 5.0, 60.0)),
        )
        prefixes = [tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(64, 300))) for _ in range(2)]
        numbers = iter(range(1000))

        def asks(count: int) -> list[Ask]:
            return [draw_ask(rng, f"ask-{next(numbers)}", context, prefixes) for _ in range(count)]

        self.visitors = [
            Visitor(
                number,
                asks(rng.randrange(1, 4)),
                rng.choice(HABITS),
                rng.choice(("http",) * 6 + ("socket", "socket", "h2")),
                self.kernel,
                rng,
                rng.uniform(0, 5),
            )
            for number in range(rng.randrange(2, 12))
        ]
        self._stops_at = rng.uniform(0, 8) if rng.random() < 0.3 else None

    @contextmanager
    def in_place(self) -> Generator[None]:
        """What would reach out of the simulation stays in it: sockets, threads, processes, chance, the disk."""
        own = random.Random(self._rng.random())
        places: tuple[tuple[object, str, object], ...] = (
            (trio.to_thread, "run_sync", run_inline),
            (trio._path, "run_sync", run_inline),  # where trio.Path has it
            (engine, "read_text_tokenizer", read_tokenizer),
            (engine, "open_traces", nothing),
            (core, "token_bytes", bytes),
            (core, "write_crash_report", nothing),
            (supervisor, "start_worker", self._start_worker),
            (gateway_module, "process_name", lambda: "sim"),
            (app_module, "process_name", lambda: "sim"),
            (Rule, "_compile_builder", no_builder),  # of URLs, which nobody asks for
            (resumable_answer, "secrets", SeededSecrets(own)),
        )
        with self.kernel.in_place(), ExitStack() as stack:
            for where, name, instead in places:
                stack.enter_context(patch.object(where, name, instead))
            yield

    def note(self, what: object) -> None:
        """Equal digests mean equal lives, message by message."""
        if isinstance(what, Step):
            self.copies += len(what.copies)
        self.digest.update(msgspec.msgpack.encode((trio.current_time(), what)))

    def _start_worker(self, settings: object) -> SimulatedProcess:
        first = not self._processes
        if not first and self._rng.random() < self._faults * 5:
            raise OSError(12, "Cannot allocate memory")
        scenario, rng = self.scenario, self._rng
        device = FakeDevice(
            num_blocks=scenario.num_blocks,
            max_step_tokens=scenario.max_step_tokens,
            max_running=scenario.max_running,
            poisoned=lambda: rng.random() < scenario.poison_rate,
        )
        number = len(self._processes) + 1
        process = SimulatedProcess(number, ready(scenario), device, self._faults, rng, self.note, first=first)
        self._processes.append(process)
        self._nursery.start_soon(process.run, name="worker process")
        return process

    async def live(self) -> None:
        self._stop, self._started = trio.Event(), trio.Event()
        serving = partial(
            serve_engine,
            self.settings,
            self._run_engine,
            self._stop,
            sockets=[self.kernel.listener],  # type: ignore[list-item]  # it stands where a socket would
            certificates=None,
        )
        async with trio.open_nursery() as self._nursery, trio.open_nursery() as world:
            world.start_soon(self._serve, serving)
            await self._be_used(world)
        self._check_all()

    async def _serve(self, serving: Callable[..., Any]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serving)
            self._started.set()
        self._ended_at = trio.current_time()

    async def _run_engine(self, *, on_open: Callable[[Engine], None]) -> None:
        def opened(made: Engine) -> None:
            self.engine, gateway = made, made.gateway
            check_every_plan(made._core.state, self.scenario, audit_every=7)
            assert isinstance(gateway._on_end, list)
            gateway._on_end.append(self._record)
            submit = gateway.submit

            def submitted(request: Generate) -> Outbox:
                outbox = submit(request)
                self._seeds[request.id] = request.sampling.seed
                return outbox

            gateway.submit = submitted  # type: ignore[method-assign]  # to know the requests by their ids
            on_open(made)

        await run_engine(self.settings, on_open=opened)

    def _record(self, history: History) -> None:
        require(history.id not in self._records, f"{history.id} has two records")
        self._records[history.id] = history

    async def _be_used(self, world: trio.Nursery) -> None:
        await self._started.wait()
        tasks_before, watching = tasks(), trio.CancelScope()
        world.start_soon(self._watch, watching)
        if self._stops_at is not None:
            world.start_soon(self._stop_early, self._stops_at)
        with trio.move_on_after(4 * LONG) as patience:
            async with trio.open_nursery() as clients:
                for visitor in self.visitors:
                    clients.start_soon(self._visit, visitor)
        require(not patience.cancelled_caught, "a client is never answered")
        if self._stops_at is None:
            await trio.sleep(self.settings.keep_alive_timeout + 60)  # restarts, idle connections, whoever is left
            require(self.engine.gateway.live_requests == 0, f"live: {list(self.engine.gateway._live)}")
            require(not self.kernel.open, f"open connections: {list(self.kernel.open)}")
            process = self._processes[-1]
            check_nothing_left(self.engine._core.state, process if process.standing == "well" else None)
            left = tasks() - tasks_before
            require(left.total() == 1, f"tasks are left: {left}")  # the watcher
            self._end()
        watching.cancel()

    async def _visit(self, visitor: Visitor) -> None:
        await visitor.run()
        await trio.sleep(FORGET_SECONDS)
        gone = {visit.ask.admit.request.sampling.seed for visit in visitor.visits}
        still = [id for id in self.engine.gateway._live if self._seeds[id] in gone]
        require(not still, f"{still} still run {FORGET_SECONDS} s after their client has left")

    async def _stop_early(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._end()

    def _end(self) -> None:
        self._stopped_at = trio.current_time()
        self._stop.set()

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Once a second: health against the truth, and what the readers have not taken against its bound."""
        with scope:
            while True:
                await trio.sleep(self._rng.uniform(0.5, 1.5))
                self._check_health()
                for live in self.engine.gateway._live.values():
                    most = self.scenario.outbox_tokens
                    require(live.outbox.tokens_waiting <= most, f"{live.outbox.tokens_waiting} tokens wait, not {most}")

    def _check_health(self) -> None:
        if self._stopped_at is not None:
            return
        health, process, now = self.engine.observer.health(), self._processes[-1], trio.current_time()
        standing, lasted = process.standing, now - process.since
        patience = TRUTH_SECONDS if standing != "hung" else TRUTH_SECONDS + 4 * max(3.0, process.longest)
        if standing == "well" and lasted > TRUTH_SECONDS:
            failed = self.engine.gateway.worker.state == "failed"
            require(health.ready or failed, f"health says {health} of a worker that is well since {lasted:.1f} s")
        elif standing != "well" and lasted > patience:
            require(not health.ready, f"health says ready of a worker that is {standing} since {lasted:.1f} s")

    def _check_all(self) -> None:
        assert self._stopped_at is not None
        late = self._ended_at - self._stopped_at - self.settings.drain_timeout - LAST_WORDS_SECONDS
        require(late < 1.5, f"the server ended {late:.1f} s late")
        self.digest.update(f"{self._stopped_at} {self._ended_at}".encode())  # in one life of 25 nobody asks in time
        require(not self.kernel.open, "connections outlive the server")
        require(all(process.standing == "gone" for process in self._processes), "a worker outlives the server")
        require(self._records.keys() == self._seeds.keys(), "not every request has its record")
        by_seed = {self._seeds[id]: record for id, record in self._records.items()}
        require(len(by_seed) == len(self._records), "a request was accepted twice")
        accounts = self.engine.accounts
        charged = sum(record.usage.completion_tokens for record in self._records.values())
        require(accounts.completion_tokens == charged, "the counters charge other tokens than the records")
        require(charged <= sum(process.sampled for process in self._processes), "more is charged than was sampled")
        for visitor in self.visitors:
            for ask, answer, kept in visitor.visits:
                record = by_seed.get(ask.admit.request.sampling.seed)
                end = ask.check(answer, record)
                served = self._stops_at is None or record is not None
                require(not (kept and answer.cut and served), f"{ask.name} is cut off: {answer.cut}")
                self.ends.append(end)
                self.digest.update(f"{ask.name} {end} {sorted(answer.texts.items())}".encode())


def tasks() -> Counter[str]:
    """Those that run, by name, but for the worker and its supervisor: how many they have is for them to say."""
    root = trio.lowlevel.current_root_task()
    waiting, found = [root] if root else [], Counter[str]()
    while waiting:
        task = waiting.pop()
        found[task.name] += 1
        if task.name not in ("worker process", "triolet.actors.supervisor.supervisor.run_supervisor"):
            waiting += (child for nursery in task.child_nurseries for child in nursery.child_tasks)
    del found["worker process"]  # of one that has failed for good there is none
    return found


async def run_inline(sync_fn: Callable[..., Any], *args: Any, **options: object) -> Any:  # Any: as trio's own
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)


async def read_tokenizer(model: str, chat_template: str | None) -> TextTokenizer:
    await trio.lowlevel.checkpoint()
    return text_tokenizer()


def nothing(*arguments: object) -> None: ...


def no_builder(rule: Rule, append_unknown: bool = True) -> Callable[..., None]:
    return nothing


class SeededSecrets:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_urlsafe(self, size: int) -> str:
        return f"{self._rng.getrandbits(8 * size):x}"


__all__ = ["SimulationError", "simulate_web"]
