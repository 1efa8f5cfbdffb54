"""The scheduler's side of one web process: its messages, its requests, and when it is given up.

The front owns its requests' text and clients. The scheduler's process knows only which requests it brought in, so that
they end with it. A front is given up when its link ends, when it sends an invalid message, when it takes more places
than its part, when it does not read (`Link.overdue`), and when it is silent for too long.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, assert_never

import msgspec
import trio

from ...protocol.fronts import (
    ForFront,
    FromFront,
    FromFrontActors,
    FrontReady,
    Inquiry,
    InquiryAnswer,
    Mail,
    Texts,
    ToFront,
)
from ...protocol.messages import Admit, Cancel, Credit, StepTokens, Stop, ToScheduler
from ...protocol.reports import FrontReport
from ...protocol.steps import Ping, Pong
from ..supervisor.child_process import ChildProcess
from ..supervisor.frame import UNREADABLE
from ..supervisor.link import Link, LinkError
from .division import owner
from .questions import NOTHING, Questions

_LOG: Final = logging.getLogger("triolet.fronts")
PING_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 10.0  # far beyond a busy front's longest turn; its clients wait, so it is replaced
START_SECONDS: Final = 120.0  # to import and listen on a slow, busy machine; after that it counts as silent
REPORT_SECONDS: Final = 1.0  # for one front's figures; after that its last ones are used

_DECODER: Final = msgspec.msgpack.Decoder[FromFront](FromFront)
_REPORT: Final = msgspec.msgpack.Decoder(FrontReport)
AnswerQuestion = Callable[[Inquiry], Awaitable[bytes]]


class FrontLine:
    """The link to one front."""

    def __init__(
        self,
        process: ChildProcess,
        name: str,
        label: str,
        *,
        max_requests: int,
        scheduler: trio.MemorySendChannel[ToScheduler],
        answer: AnswerQuestion,
    ) -> None:
        self.name = name  # the prefix of its request ids; never reused
        self.label = label  # of its place among the fronts
        self.ready = False
        self.last: FrontReport | None = None
        self._process = process
        self._max_requests = max_requests
        self._scheduler = scheduler
        self._answer = answer
        self._link = Link(process.stream, _DECODER)
        self._questions = Questions(self._link.send_nowait, REPORT_SECONDS)
        self._live: set[str] = set()  # requests brought in that have not ended
        self._heard = trio.current_time()
        self._unreadable = False  # its last report was
        self._given_up: str = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToFront) -> None:
        """Send a message without waiting."""
        self._link.send_nowait(message)

    def send_texts(self, texts: list[ForFront]) -> None:
        """Send all texts in one frame. If log probabilities of whole prompts make it too large: one frame each."""
        try:
            self.send(Texts(texts=tuple(texts)))
        except LinkError:
            for text in _singly(texts):
                self.send(Texts(texts=(text,)))

    async def converse(self, on_ready: Callable[[], None]) -> str:
        """Run until it ends; returns why it was given up, or nothing if it ended by itself."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._link.keep_sending)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._receive(nursery, on_ready)
                nursery.cancel_scope.cancel()
        except* (trio.EndOfChannel, trio.BrokenResourceError):
            pass
        except* LinkError as group:
            self._given_up = str(group.exceptions[0])
        if self._given_up:
            self._process.kill()
        return self._given_up

    def end_requests(self) -> None:
        """End its requests: their clients are gone with the front."""
        for id in self._live:
            self._scheduler.send_nowait(Cancel(id=id))
        self._live.clear()

    async def report(self) -> bool:
        """Ask for its figures; returns whether they came in time and were readable. Then they are `last`."""
        return await self._questions.ask("own_report") is not None and not self._unreadable

    async def explain(self, id: str, tenant: str) -> bytes:
        """Its explanation of a request, encoded; NOTHING if it has none or does not answer in time."""
        return await self._questions.ask("explain", id, tenant) or NOTHING

    async def _watch(self, scope: trio.CancelScope) -> None:
        while not self._given_up:
            self.send(Ping())
            await trio.sleep(PING_SECONDS)
            silence = trio.current_time() - self._heard
            if self._link.overdue:
                self._given_up = "it does not read what it is sent"
            elif silence > (SILENCE_SECONDS if self.ready else START_SECONDS):
                self._given_up = f"it has said nothing for {silence:.0f} s"
        scope.cancel()

    async def _receive(self, nursery: trio.Nursery, on_ready: Callable[[], None]) -> None:
        while True:
            message = await self._link.receive()
            self._heard = trio.current_time()
            match message:
                case Mail(messages=messages):
                    for said in messages:
                        self._pass_on(said)
                case InquiryAnswer():
                    if self._questions.take_answer(message) == "own_report":
                        self._keep_report(message.body)  # before the tasks that wait for it run
                case Inquiry():
                    nursery.start_soon(self._reply, message)
                case FrontReady():
                    self.ready = True
                    on_ready()
                case Pong():
                    pass
                case _:
                    assert_never(message)

    def _pass_on(self, message: FromFrontActors) -> None:
        match message:
            case Admit(request=request):
                if owner(request.id) != self.name or request.id in self._live:
                    raise LinkError(f"it brought a request {request.id!r} that is not its own")
                if len(self._live) >= self._max_requests:
                    raise LinkError(f"it brought more than its {self._max_requests} requests")
                self._live.add(request.id)
            case Cancel(id=id):
                self._live.discard(id)
            case Credit() | Stop():
                pass
            case _:
                assert_never(message)
        self._scheduler.send_nowait(message)

    def _keep_report(self, body: bytes) -> None:
        """Keep a report, even a late one. Unreadable ones are ignored: figures are no reason to end streams."""
        try:
            self.last, self._unreadable = _REPORT.decode(body), False
        except UNREADABLE as error:
            if not self._unreadable:  # log it once, not for every scrape
                _LOG.error("%s: its report cannot be read, its last figures stand in: %s", self.label, error)
            self._unreadable = True

    async def _reply(self, question: Inquiry) -> None:
        self.send(InquiryAnswer(number=question.number, body=await self._answer(question)))


def _singly(texts: Iterable[ForFront]) -> Iterator[ForFront]:
    """The same texts, one choice at a time."""
    for text in texts:
        if isinstance(text, StepTokens) and text.others:
            yield StepTokens(ids=text.ids, rows=text.rows)
            yield from (StepTokens(others=(choice,)) for choice in text.others)
        else:
            yield text
