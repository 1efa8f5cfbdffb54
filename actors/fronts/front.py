"""The engine as one web process of several has it: the outer half here, the scheduler behind a link.

The actors hold ordinary channel ends and cannot tell. What they say leaves in bundles; what comes for the detokenizer
arrives in bundles; times cross the link in the scheduler's time. The link's end is this engine's end: every stream is
told, and the process leaves.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

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
    ReloadCertificate,
    StepAgain,
    Texts,
    ToFront,
    WorkerNews,
)
from ...protocol.messages import Admit, Cancel, OpenChoice, StepTokens, ToDetokenizer, ToScheduler
from ...protocol.steps import Ping, Pong, Ready
from ..engine import Engine
from ..front_actors import FrontActors
from ..observe.ledger import Ledger
from ..observe.metrics import render_report
from ..observe.reports import FrontReport, ServerReport, own_figures, whole_ledger
from ..observe.traces import open_traces
from ..supervisor.link import Link
from ..supervisor.worker_status import Health, WorkerStatus
from ..tokenizer.tokenizer import TokenizerLane, read_text_tokenizer
from .post import Post
from .questions import Questions

_BUNDLE: Final = 256  # messages in a frame
DECODER: Final = msgspec.msgpack.Decoder[ToFront](ToFront)
_SERVER: Final = msgspec.msgpack.Decoder(ServerReport)
_HEALTH: Final = msgspec.msgpack.Decoder(Health)
_ABOUT: Final = msgspec.msgpack.Decoder[About | None](About | None)
_VIEW: Final = msgspec.msgpack.Decoder(View)
_STANDING: Final = msgspec.msgpack.Decoder[Standing | None](Standing | None)
_EXPLANATION: Final = msgspec.msgpack.Decoder[Explanation | None](Explanation | None)

Explain = Callable[[str, str], Awaitable[Explanation | None]]


class SchedulerLost(Exception):
    """The scheduler's process has ended."""


class FrontLink:
    """This end of the link: bundles, questions and the worker's news."""

    def __init__(
        self,
        stream: trio.SocketStream,
        link: Link[ToFront],
        opening: OpenFront,
        *,
        on_drain: Callable[[], None],
        on_reload: Callable[[], None],
    ) -> None:
        self.status = WorkerStatus()
        self.to_scheduler, self._outgoing = trio.open_memory_channel[ToScheduler](float("inf"))  # bounded by its use
        self.held_open = self._outgoing.clone()  # as in core.py
        self._link = link
        self._post = Post(stream)
        self._on_drain = on_drain
        self._on_reload = on_reload
        self._shift = opening.clock - (trio.current_time() - time.perf_counter())
        self._admitted: dict[str, Admit] = {}  # what `ChoiceOpened` leaves out, while the request lives
        self._ids: tuple[str, ...] = ()  # of the last StepTokens
        self._ready = trio.Event()
        self.questions = Questions(self._post.send_nowait)
        self._report: Callable[[], FrontReport] | None = None
        self._explain: Explain | None = None
        self._handle: Callable[[Sequence[ToDetokenizer]], None] | None = None

    def serve(
        self, handle: Callable[[Sequence[ToDetokenizer]], None], report: Callable[[], FrontReport], explain: Explain
    ) -> None:
        """Who takes the texts, who knows this process's figures, and its requests. Before the first request."""
        self._handle, self._report, self._explain = handle, report, explain

    async def run(self) -> None:
        """Until the scheduler's process ends: raises SchedulerLost."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._post.run)
                nursery.start_soon(self._bundle)
                await self._receive(nursery)
        except* (trio.EndOfChannel, trio.BrokenResourceError):
            raise SchedulerLost("the scheduler's process has ended") from None

    async def wait_ready(self) -> Ready:
        """For the first worker."""
        await self._ready.wait()
        assert self.status.ready is not None
        return self.status.ready

    def say_ready(self, urls: tuple[str, ...]) -> None:
        self._post.send_nowait(FrontReady(urls=urls))

    async def _bundle(self) -> None:
        """Everything that waits in one frame, up to a request: its prompts may be megabytes."""
        async with self._outgoing as outgoing:
            async for first in outgoing:
                bundle = [self._outbound(first)]
                try:
                    while not isinstance(bundle[-1], Admit) and len(bundle) < _BUNDLE:
                        bundle.append(self._outbound(outgoing.receive_nowait()))
                except (trio.WouldBlock, trio.EndOfChannel):
                    pass
                self._post.send_nowait(Mail(messages=tuple(bundle)))
                await self._post.wait_sent()

    def _outbound(self, message: ToScheduler) -> FromFrontActors:
        assert isinstance(message, FromFrontActors), message
        if isinstance(message, Admit):
            request = message.request
            self._admitted[request.id] = message
            due = None if request.deadline is None else request.deadline + self._shift
            request = structs.replace(request, arrival_time=request.arrival_time + self._shift, deadline=due)
            return structs.replace(message, request=request)
        if isinstance(message, Cancel):  # the gateway's last word on every request
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
                        self._post.send_nowait(Answer(number=number, body=msgspec.msgpack.encode(self._report())))
                case Answer():
                    self.questions.take(message)
                case Drain():
                    self._on_drain()
                case ReloadCertificate():
                    self._on_reload()
                case Ping():
                    self._post.send_nowait(Pong())
                case OpenFront():
                    raise AssertionError("a second OpenFront")
                case _:
                    assert_never(message)

    async def _answer(self, question: Ask) -> None:
        """Why a request waits; nothing where it is not this front's, or the scheduler does not answer in time."""
        found = None
        if self._explain is not None:
            with suppress(ApiError):
                found = await self._explain(question.id, question.tenant)
        self._post.send_nowait(Answer(number=question.number, body=msgspec.msgpack.encode(found)))

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


class FrontEngine(Engine):
    """The engine that the web of this process holds."""

    def __init__(self, opening: OpenFront, actors: FrontActors, link: FrontLink, lane: TokenizerLane) -> None:
        super().__init__(
            opening.settings,
            gateway=actors.gateway,
            accounts=actors.accounts,
            state=None,
            status=link.status,
            lane=lane,
        )
        self._ask = link.questions.ask

    def health(self) -> Health:
        """As far as this process knows: whether the worker makes progress, the scheduler's process is asked."""
        if self.draining or self._status.state != "ready":
            return super().health()
        return Health(ready=True, status="ready", reason="")

    async def whole_health(self) -> Health:
        return super().health() if self.draining else _HEALTH.decode(await self._ask("health"))

    async def whole_ledger(self) -> Ledger:
        return whole_ledger(_SERVER.decode(await self._ask("server")))

    async def whole_about(self) -> About | None:
        found: About | None = _ABOUT.decode(await self._ask("about"))
        return found

    async def whole_view(self) -> View:
        return _VIEW.decode(await self._ask("view"))

    async def whole_metrics(self) -> bytes:
        return render_report(_SERVER.decode(await self._ask("server")), self.vllm_model)

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Also of requests that came by way of another front."""
        found = await super().explain(wanted, tenant)
        return found or _EXPLANATION.decode(await self._ask("explain", wanted, tenant))

    async def _standing(self, id: str) -> Standing | None:
        found: Standing | None = _STANDING.decode(await self._ask("standing", id))
        return found


async def run_front(
    link: FrontLink, opening: OpenFront, *, task_status: trio.TaskStatus[Engine] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run this process's half of the engine until cancelled; started with it. Raises SchedulerLost."""
    traces = await trio.to_thread.run_sync(open_traces, opening.settings.otlp_endpoint)
    actors = FrontActors(
        opening.settings, scheduler=link.to_scheduler, status=link.status, process=opening.process, traces=traces
    )
    last_word = ApiError("shutting_down", "the server was stopped before this request ended")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            text = await read_text_tokenizer(opening.settings.engine.model)
            lane = actors.start(nursery, text, await link.wait_ready(), None)
            engine = FrontEngine(opening, actors, link, lane)
            own_explain = partial(Engine.explain, engine)  # another front's question must not go round
            link.serve(actors.detokenizer(text).handle, partial(_report, actors), own_explain)
            task_status.started(engine)
    except Exception:
        last_word = ApiError("engine_error", "the engine failed; the server's log says how")
        raise
    finally:
        await actors.end(last_word)
        link.held_open.close()


def _report(actors: FrontActors) -> FrontReport:
    live = actors.gateway.live_requests
    return FrontReport(live=live, accounts=actors.accounts.figures(), process=own_figures())
