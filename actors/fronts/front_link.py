"""A web process's end of the link to the scheduler's process: bundles, questions and the worker's news.

The actors' messages leave in bundles, and those for the detokenizer arrive in bundles; times cross the link in the
scheduler's time.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, assert_never

import msgspec
import trio
from msgspec import structs

from ...protocol.errors import ApiError
from ...protocol.explanation import Explanation
from ...protocol.fronts import (
    AdapterNews,
    ChoiceOpened,
    Drain,
    ForFront,
    FromFrontActors,
    FrontReady,
    Inquiry,
    InquiryAnswer,
    Listen,
    Mail,
    OpenFront,
    ReloadCertificate,
    Texts,
    ToFront,
    WorkerNews,
)
from ...protocol.messages import Admit, Cancel, OpenChoice, ToDetokenizer, ToScheduler
from ...protocol.reports import FrontReport
from ...protocol.settings import model_name
from ...protocol.steps import Ping, Pong, Ready
from ..adapters import AdapterTable, given_adapters
from ..supervisor.link import Link
from ..supervisor.worker_status import WorkerStatus
from .questions import Questions

_BUNDLE: Final = 256  # messages per frame
DECODER: Final = msgspec.msgpack.Decoder[ToFront](ToFront)
ASK_SECONDS: Final = 2.0  # for the whole server's figures; the scheduler's process allows each front one second

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
        on_drain: Callable[[Drain], None],
        on_reload: Callable[[], None],
    ) -> None:
        self.status = WorkerStatus()
        self.may_listen = trio.Event()
        if not opening.waits:
            self.may_listen.set()
        self.to_scheduler, self._outgoing = trio.open_memory_channel[ToScheduler](float("inf"))  # limited in use
        self.held_open = self._outgoing.clone()  # as in core.py
        self._link = link
        self._on_drain = on_drain
        self._on_reload = on_reload
        self._shift = opening.clock - (trio.current_time() - time.perf_counter())
        self._admitted: dict[str, Admit] = {}  # of live requests: the part that `ChoiceOpened` leaves out
        self._ready = trio.Event()
        settings = opening.settings
        self.adapters = AdapterTable(model_name(settings), given_adapters(settings), lambda adapter: None)
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

    def say_ready(self) -> None:
        self._link.send_nowait(FrontReady())

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
            request = structs.replace(
                request,
                arrival_time=request.arrival_time + self._shift,
                deadline=self._shifted(request.deadline),
                first_token_deadline=self._shifted(request.first_token_deadline),
            )
            return structs.replace(message, request=request)
        if isinstance(message, Cancel):  # the gateway's last message about every request
            self._admitted.pop(message.id, None)
        return message

    def _shifted(self, moment: float | None) -> float | None:
        return None if moment is None else moment + self._shift

    async def _receive(self, nursery: trio.Nursery) -> None:
        while True:
            message = await self._link.receive()
            match message:
                case Texts(texts=texts):
                    assert self._handle is not None, "texts before the first request"
                    self._handle([said for text in texts if (said := self._inbound(text)) is not None])
                case WorkerNews():
                    self._take_news(message)
                case AdapterNews(adapters=adapters):
                    self.adapters.copy(adapters)
                case Inquiry(number=number, question="explain"):
                    nursery.start_soon(self._answer, message)
                case Inquiry(number=number):
                    if self._report is not None:
                        self._link.send_nowait(
                            InquiryAnswer(number=number, body=msgspec.msgpack.encode(self._report()))
                        )
                case InquiryAnswer():
                    self.questions.take_answer(message)
                case Drain():
                    self._on_drain(message)
                case Listen():
                    self.may_listen.set()
                case ReloadCertificate():
                    self._on_reload()
                case Ping():
                    self._link.send_nowait(Pong())
                case OpenFront():
                    raise AssertionError("a second OpenFront")
                case _:
                    assert_never(message)

    async def _answer(self, question: Inquiry) -> None:
        """Explain a request; null if it is not this front's, or the scheduler does not answer in time."""
        found = None
        if self._explain is not None:
            with suppress(ApiError):
                found = await self._explain(question.id, question.tenant)
        self._link.send_nowait(InquiryAnswer(number=question.number, body=msgspec.msgpack.encode(found)))

    def _inbound(self, text: ForFront) -> ToDetokenizer | None:
        if not isinstance(text, ChoiceOpened):
            return text
        admit = self._admitted.get(text.id)
        if admit is None:
            return None  # it has just ended
        prompt = admit.prompts[text.index // admit.request.n]
        return OpenChoice(request=admit.request, index=text.index, prompt=prompt, cached_tokens=text.cached_tokens)

    def _take_news(self, news: WorkerNews) -> None:
        self.status.copy(news.state, news.reason, news.ready, news.loading, trio.current_time())
        if news.ready is not None:
            self._ready.set()
