"""Several web processes with one scheduler: starts, feeds, asks, replaces and drains them.

Each front is a whole outer half of the engine (front_actors.py) with its web. The scheduler's process has no web and no
tokenizer: all it does for a stream is one entry in a frame per step. A front that dies takes its clients along. Its
requests are cancelled at once, so their memory is freed, and the streams of other fronts do not notice.
"""

import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final

import trio
from msgspec import structs

from ...protocol.fronts import AdapterNews, Drain, Listen, OpenFront, ReloadCertificate, ToFront, WorkerNews
from ...protocol.reports import Figures, FrontsReport, KeptFigures
from ...protocol.settings import ServeSettings
from ..core import Core
from ..errors import EngineLoadError, FrontsLost
from ..gateway.accounts import Accounts, add_up
from ..observe.observe import Observer
from ..supervisor.child_process import ChildProcess
from ..supervisor.restart_budget import PERIOD, RESTARTS, RestartBudget
from ..turns import waiting
from .answers import Answers
from .division import divide, keys_of, owner, part_of
from .front_line import FrontLine

_LOG: Final = logging.getLogger("triolet.fronts")
LAST_WORDS_SECONDS: Final = 1.5  # for a front to end its streams after its link has ended
LAST_RECORDS_SECONDS: Final = 5.0  # and to write its usage records when it has drained: a disk may be slow


class Fronts:
    """All web processes of a server."""

    def __init__(
        self,
        settings: ServeSettings,
        core: Core,
        *,
        module: str,
        name: str,
        listening: Callable[[int], AbstractContextManager[Sequence[socket.socket]]],
        waits: bool = False,
    ) -> None:
        """`module` is what a front runs; `listening` has the sockets of a front as long as it runs, by its number.
        `name` begins front names. `waits`: they accept no connection before `listen`.
        """
        self.restarts = 0
        self._settings = settings
        self._count = settings.web_processes
        self._core = core
        self._module = module
        self._name = name
        self._listening = listening
        self._waits = waits
        self._lines: dict[str, FrontLine] = {}
        self._started = 0
        self._given_up = 0
        self._draining = False
        self._gone: Figures = Accounts().figures()
        self.observer = Observer(
            settings,
            state=core.state,
            status=core.status,
            draining=lambda: self._draining,
            collect_web=self._collect_web,
            batches=core.batches,
            process_of=self._label,
        )
        self._answers = Answers(self.observer, self._lines, core.adapters, self._tell_adapters)
        core.status.on_change.add(lambda: self._broadcast(self._news()))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until every front has drained; started when all serve. Raises FrontsLost when none is left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._distribute)
            async with trio.open_nursery() as keeping:
                async with trio.open_nursery() as starting:
                    for number in range(self._count):
                        starting.start_soon(keeping.start, partial(self._keep, number))
                task_status.started()
            nursery.cancel_scope.cancel()

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each front, by the name that begins its request ids."""
        return {name: line.pid for name, line in self._lines.items()}

    def listen(self) -> None:
        """Let all fronts accept connections."""
        self._waits = False
        self._broadcast(Listen())

    def begin_drain(self, *, handed_over: bool = False) -> None:
        """Refuse new requests in all fronts; `run` returns when the last front has ended."""
        self._draining = True
        self._broadcast(Drain(handed_over=handed_over))

    def end_answers(self) -> None:
        """Draining takes too long: every front ends its running answers."""
        self._broadcast(Drain(at_once=True))

    def reload_certificate(self) -> None:
        self._broadcast(ReloadCertificate())

    async def _collect_web(self) -> FrontsReport:
        """The figures of all fronts together. For fronts that do not answer in time, their last ones."""
        answered: set[str] = set()

        async def ask(line: FrontLine) -> None:
            if await line.report():
                answered.add(line.name)

        asked = list(self._lines.values())
        async with trio.open_nursery() as nursery:
            for line in asked:
                nursery.start_soon(ask, line)
        lines = [line for line in asked if line.name in self._lines]  # one that ended meanwhile is in `_gone`
        reports = {line.label: line.last for line in lines if line.last is not None}
        return FrontsReport(
            live=sum(report.live for report in reports.values()),
            accounts=add_up([self._gone, *(report.accounts for report in reports.values())]).figures(),
            kept=KeptFigures(
                answers=sum(report.kept.answers for report in reports.values()),
                bytes=sum(report.kept.bytes for report in reports.values()),
            ),
            processes={name: report.process for name, report in reports.items()},
            silent=sum(line.name not in answered for line in lines),
            restarts=self.restarts,
        )

    def _label(self, id: str) -> str:
        """The front that holds a request; empty for a front that just died, whose requests are being cancelled."""
        line = self._lines.get(owner(id))
        return line.label if line else ""

    async def _distribute(self) -> None:
        """Send the scheduler's texts to their owners: all that wait, in one frame per front."""
        async with self._core.texts as inbox:
            async for first in inbox:
                for name, share in divide((first, *waiting(inbox))).items():
                    if line := self._lines.get(name):  # otherwise it has died, and its requests are being cancelled
                        line.send_texts(share)

    async def _keep(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Run one front after another in this place."""
        budget, ready = RestartBudget(), False

        def on_ready() -> None:
            nonlocal ready
            if not ready:
                ready = True
                task_status.started()

        while True:
            why = await self._run_one(number, on_ready)
            if self._draining:
                if not ready:
                    task_status.started()
                return
            if not ready:
                raise EngineLoadError("internal_error", f"{why} while it started; its messages are above")
            if (delay := budget.next_delay(trio.current_time())) is None:
                break
            _LOG.warning("%s; its requests were cancelled; starting another in %.2f s", why, delay)
            self.restarts += 1
            await trio.sleep(delay)
            if self._draining:
                return
        message = f"{why}, {RESTARTS} restarts within {PERIOD:.0f} s did not help"
        _LOG.error("%s; the server goes on without it", message)
        self._given_up += 1
        if self._given_up == self._count:
            raise FrontsLost(f"no web process is left: {message}; what they logged is above")

    async def _run_one(self, number: int, on_ready: Callable[[], None]) -> str:
        """Run a front from start to end; returns how it ended."""
        self._started += 1
        name = f"{self._name}w{self._started}"
        limits = part_of(self._settings.limits, number, self._count)
        listening = ExitStack()
        try:
            keys = keys_of(self._settings.key_tables, number, self._count)
            sockets = listening.enter_context(self._listening(number))
            process = self._start(name, structs.replace(self._settings, limits=limits, key_tables=keys), sockets)
        except OSError as error:
            listening.close()
            return f"a web process cannot be started: {error.strerror}"
        line = FrontLine(
            process,
            name,
            f"web-{number}",
            max_requests=limits.max_requests,
            scheduler=self._core.to_scheduler,
            answer=self._answers.answer,
        )
        self._lines[name] = line
        line.send(self._news())
        line.send(self._adapters())
        if self._draining:
            line.send(Drain())

        why = ""
        try:
            why = await line.converse(on_ready)
        finally:
            del self._lines[name]
            listening.close()
            line.end_requests()
            if line.last is not None:
                self._gone = add_up([self._gone, line.last.accounts]).figures()
            how = await process.end(LAST_RECORDS_SECONDS if self._draining else LAST_WORDS_SECONDS)
        return f"{how} ({why})" if why else how

    def _start(self, name: str, settings: ServeSettings, sockets: Sequence[socket.socket]) -> ChildProcess:
        clock = trio.current_time() - time.perf_counter()
        opening = OpenFront(process=name, settings=settings, clock=clock, waits=self._waits)
        return ChildProcess("web", self._module, opening, sockets=sockets)

    def _news(self) -> WorkerNews:
        status = self._core.status
        return WorkerNews(state=status.state, reason=status.reason, ready=status.ready, loading=status.loading)

    def _adapters(self) -> AdapterNews:
        return AdapterNews(adapters=tuple(self._core.adapters.by_name.values()))

    async def _tell_adapters(self) -> None:
        """Returns when they have taken it: an answer to a later message shows that."""
        self._broadcast(self._adapters())
        await self._collect_web()

    def _broadcast(self, message: ToFront) -> None:
        for line in self._lines.values():
            line.send(message)
