"""The engine in one web process of several: the outer half is here, the scheduler behind a link.

The actors hold ordinary channel ends and see no difference. Their messages leave in bundles, and those for the
detokenizer arrive in bundles; times cross the link in the scheduler's time. When the link ends, so does this engine:
every stream gets an error, and the process exits.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar, assert_never

import msgspec
import trio
from msgspec import structs

from ...protocol.engine_view import About, View
from ...protocol.errors import ApiError
from ...protocol.explanation import Explanation, Standing
from ...protocol.fronts import (
    Answer,
    Ask,
    ChoiceOpened,
    Drain,
    ForFront,
    FromFrontActors,
    FrontReady,
    Mail,
    OpenFront,
    Question,
    ReloadCertificate,
    StepAgain,
    Texts,
    ToFront,
    WorkerNews,
)
from ...protocol.messages import Admit, Cancel, OpenChoice, StepTokens, ToDetokenizer, ToScheduler
from ...protocol.reports import FrontReport, Health, ServerReport
from ...protocol.steps import Ping, Pong, Ready
from ..front_actors import FrontActors
from ..observe.observe import Server, own_figures
from ..observe.traces import Traces, open_traces
from ..supervisor.link import Link
from ..supervisor.worker_status import WorkerStatus
from ..tokenizer.tokenizer import read_text_tokenizer
from .questions import NOTHING, Questions

_BUNDLE: Final = 256  # messages per frame
DECODER: Final = msgspec.msgpack.Decoder[ToFront](ToFront)
ASK_SECONDS: Final = 2.0  # for the whole server's figures; the scheduler's process allows each front one second

_Answered = TypeVar("_Answered")
Explain = Callable[[str, str], Awaitable[Explanation | None]]


class SchedulerLost(Exception):
    """The scheduler's process has ended."""


class FrontLink:
    """This end of the link: bundles, questions and news of the worker."""

    def __init__(
        self,
        link: Link[ToFront],
        opening: OpenFront,
        *,
        on_drain: Callable[[], None],
        on_reload: Callable[[], None],
    ) -> None:
        self.status = WorkerStatus()
        self.to_scheduler, self._outgoing = trio.open_memory_channel[ToScheduler](float("inf"))  # limited in use
        self.held_open = self._outgoing.clone()  # as in core.py
        self._link = link
        self._on_drain = on_drain
        self._on_reload = on_reload
        self._shift = opening.clock - (trio.current_time() - time.perf_counter())
        self._admitted: dict[str, Admit] = {}  # of live requests: the part that `ChoiceOpened` leaves out
        self._ids: tuple[str, ...] = ()  # of the last StepTokens
        self._ready = trio.Event()
        self.questions = Questions(link.send_nowait, ASK_SECONDS)
        self._report: Callable[[], FrontReport] | None = None
        self._explain: Explain | None = None
        self._handle: Callable[[Sequence[ToDetokenizer]], None] | None = None

    def serve(
        self, handle: Callable[[Sequence[ToDetokenizer]], None], report: Callable[[], FrontReport], explain: Explain
    ) -> None:
        """Set who takes the texts, and who knows this process's figures and requests. Before the first request."""
        self._handle, self._report, self._explain = handle, report, explain

    async def run(self) -> None:
        """Run until the scheduler's process ends: raises SchedulerLost."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._link.keep_sending)
                nursery.start_soon(self._bundle)
                await self._receive(nursery)
        except* (trio.EndOfChannel, trio.BrokenResourceError):
            raise SchedulerLost("the scheduler's process has ended") from None

    async def wait_ready(self) -> Ready:
        """Wait for the first worker."""
        await self._ready.wait()
        assert self.status.ready is not None
        return self.status.ready

    def say_ready(self, urls: tuple[str, ...]) -> None:
        self._link.send_nowait(FrontReady(urls=urls))

    async def _bundle(self) -> None:
        """Send all waiting messages in one frame, up to a request: its prompts may be megabytes."""
        async with self._outgoing as outgoing:
            async for first in outgoing:
                bundle = [self._outbound(first)]
                try:
                    while not isinstance(bundle[-1], Admit) and len(bundle) < _BUNDLE:
                        bundle.append(self._outbound(outgoing.receive_nowait()))
                except (trio.WouldBlock, trio.EndOfChannel):
                    pass
                await self._link.send(Mail(messages=tuple(bundle)))

    def _outbound(self, message: ToScheduler) -> FromFrontActors:
        assert isinstance(message, FromFrontActors), message
        if isinstance(message, Admit):
            request = message.request
            self._admitted[request.id] = message
            due = None if request.deadline is None else request.deadline + self._shift
            request = structs.replace(request, arrival_time=request.arrival_time + self._shift, deadline=due)
            return structs.replace(message, request=request)
        if isinstance(message, Cancel):  # the gateway's last message about every request
            self._admitted.pop(message.id, None)
        return message

    async def _receive(self, nursery: trio.Nursery) -> None:
        while True:
            message = await self._link.receive()
            match message:
                case Texts(texts=texts):
                    assert self._handle is not None, "texts before the first request"
                    self._handle([said for text in texts if (said := self._inbound(text)) is not None])
                case WorkerNews():
                    self._take_news(message)
                case Ask(number=number, question="explain"):
                    nursery.start_soon(self._answer, message)
                case Ask(number=number):
                    if self._report is not None:
                        self._link.send_nowait(Answer(number=number, body=msgspec.msgpack.encode(self._report())))
                case Answer():
                    self.questions.take_answer(message)
                case Drain():
                    self._on_drain()
                case ReloadCertificate():
                    self._on_reload()
                case Ping():
                    self._link.send_nowait(Pong())
                case OpenFront():
                    raise AssertionError("a second OpenFront")
                case _:
                    assert_never(message)

    async def _answer(self, question: Ask) -> None:
        """Explain a request; null if it is not this front's, or the scheduler does not answer in time."""
        found = None
        if self._explain is not None:
            with suppress(ApiError):
                found = await self._explain(question.id, question.tenant)
        self._link.send_nowait(Answer(number=question.number, body=msgspec.msgpack.encode(found)))

    def _inbound(self, text: ForFront) -> ToDetokenizer | None:
        if isinstance(text, StepAgain):
            return StepTokens(ids=self._ids, rows=text.rows)
        if isinstance(text, StepTokens):
            self._ids = text.ids
        if not isinstance(text, ChoiceOpened):
            return text
        admit = self._admitted.get(text.id)
        if admit is None:
            return None  # it has just ended
        prompt = admit.prompts[text.index // admit.request.n]
        return OpenChoice(request=admit.request, index=text.index, prompt=prompt, cached_tokens=text.cached_tokens)

    def _take_news(self, news: WorkerNews) -> None:
        self.status.ready = news.ready
        if news.state != "ready":
            self.status.lose(news.state, news.reason)
        elif news.ready is not None:
            self.status.set_ready(news.ready, trio.current_time())
            self._ready.set()


class FrontEngine(FrontActors):
    """The `Server` for the web of this process: it asks over the link for what it does not know."""

    def __init__(self, opening: OpenFront, link: FrontLink, traces: Traces | None) -> None:
        super().__init__(
            opening.settings, scheduler=link.to_scheduler, status=link.status, process=opening.process, traces=traces
        )
        self._questions = link.questions

    async def health(self) -> Health:
        if self.draining:
            return Health(ready=False, status="draining", reason="the server is shutting down")
        return await self._ask_for("health", Health)

    async def report(self) -> ServerReport:
        return await self._ask_for("report", ServerReport)

    async def about(self) -> About | None:
        return await self._ask("about", About)

    async def view(self) -> View:
        return await self._ask_for("view", View)

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Explain a request, also of another front."""
        found = await self.own_explanation(wanted, tenant)
        return found or await self._ask("explain", Explanation, wanted, tenant)

    async def own_explanation(self, wanted: str, tenant: str) -> Explanation | None:
        """Explain a request of this front for another one, without asking further."""
        return await super().explain(wanted, tenant)

    async def standing(self, id: str) -> Standing | None:
        return await self._ask("standing", Standing, id)

    def own_report(self) -> FrontReport:
        return FrontReport(live=self.gateway.live_requests, accounts=self.accounts.figures(), process=own_figures())

    async def _ask(self, question: Question, kind: type[_Answered], id: str = "", tenant: str = "") -> _Answered | None:
        """Raises ApiError (503) if no answer comes in time."""
        body = await self._questions.ask(question, id, tenant)
        if body is None:
            text = f"The scheduler's process did not answer within {ASK_SECONDS:g} s."
            raise ApiError("engine_unavailable", text, retry_after=2)
        return None if body == NOTHING else msgspec.msgpack.decode(body, type=kind)

    async def _ask_for(self, question: Question, kind: type[_Answered]) -> _Answered:
        """Ask a question that always has an answer."""
        answer = await self._ask(question, kind)
        assert answer is not None, question
        return answer


async def run_front(
    link: FrontLink, opening: OpenFront, *, task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run this process's half of the engine until cancelled; started with it. Raises SchedulerLost."""
    traces = await trio.to_thread.run_sync(open_traces, opening.settings.otlp_endpoint)
    engine = FrontEngine(opening, link, traces)
    last_word = ApiError("shutting_down", "the server was stopped before this request ended")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            text = await read_text_tokenizer(opening.settings.engine.model)
            engine.start(nursery, text, await link.wait_ready(), None)
            link.serve(engine.detokenizer(text).handle, engine.own_report, engine.own_explanation)
            task_status.started(engine)
    except Exception:
        last_word = ApiError("engine_error", "the engine failed; the server's log says how")
        raise
    finally:
        await engine.end(last_word)
        link.held_open.close()
