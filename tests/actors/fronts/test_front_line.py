"""What the scheduler's process bears from a web process, and what makes it give one up. The test is the web process."""

import socket
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.actors.fronts.front_line import FrontLine
from triolet.actors.fronts.front_link import FrontLink
from triolet.actors.gateway.accounts import Accounts
from triolet.actors.supervisor.child_process import ChildProcess
from triolet.actors.supervisor.link import Link
from triolet.protocol.fronts import (
    ForFront,
    FrontReady,
    Inquiry,
    InquiryAnswer,
    Mail,
    OpenFront,
    Texts,
    ToFront,
)
from triolet.protocol.message import Message
from triolet.protocol.messages import (
    Admit,
    Cancel,
    ChoiceTokens,
    Credit,
    StepTokens,
    ToDetokenizer,
    ToScheduler,
)
from triolet.protocol.reports import FrontReport, ProcessFigures
from triolet.protocol.settings import EngineSettings, ServeSettings
from triolet.protocol.steps import Ping

from ..wiring import generate

DECODER = msgspec.msgpack.Decoder[ToFront](ToFront)


SETTINGS = ServeSettings(engine=EngineSettings(model="tiny"))


def never(*_: object) -> Any:  # stands for callbacks of several kinds
    raise AssertionError("nobody asks for this here")


class InThisProcess:
    """Stands for a child process: a link, and whether it was killed."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.killed = False
        self.pid = 0

    def kill(self) -> None:
        self.killed = True


class House:
    """A line, its front's end, and what reached the scheduler."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.process = InThisProcess(ours)
        self.front = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        self.link = Link(self.front, DECODER)
        to_scheduler, self._inbox = trio.open_memory_channel[ToScheduler](100)
        self.line = FrontLine(
            cast("ChildProcess", self.process),  # what the line uses of it
            "aw1",
            "web-0",
            max_requests=2,
            scheduler=to_scheduler,
            answer=self._answer,
        )

    async def _answer(self, question: Inquiry) -> bytes:
        return question.question.encode()

    async def say(self, *messages: Message) -> str:
        """The front says this and goes away; why it was given up."""
        for message in messages:
            await self.link.send(message)
        await self.front.send_eof()
        why = await self.line.converse(lambda: None)
        self.line.end_requests()
        return why

    def heard(self) -> list[ToScheduler]:
        heard: list[ToScheduler] = []
        while self._inbox.statistics().current_buffer_used:
            heard.append(self._inbox.receive_nowait())
        return heard


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    house = House()
    with trio.fail_after(20):
        yield house
    house.process.stream.socket.close()
    house.front.socket.close()


def admit(id: str) -> Admit:
    request = generate(id)
    return Admit(request=request, prompts=((1, 2),), max_tokens=(4,), stop_token_ids=(), eos_token_ids=())


async def test_what_a_front_says_reaches_the_scheduler_and_its_end_ends_its_requests(house: House) -> None:
    first, second, credit = admit("aw1-1"), admit("aw1-2"), Credit(id="aw1-1", tokens=5)
    why = await house.say(FrontReady(), Mail(messages=(first, credit)), Mail(messages=(second,)))
    assert (why, house.process.killed) == ("", False)
    *said, last, other = house.heard()
    assert said == [first, credit, second]
    assert {last, other} == {Cancel(id="aw1-1"), Cancel(id="aw1-2")}


async def test_a_request_that_is_over_frees_its_place_and_is_not_ended_again(house: House) -> None:
    first, second, third = admit("aw1-1"), admit("aw1-2"), admit("aw1-3")
    over = (Cancel(id="aw1-1"), Cancel(id="aw1-2"), Cancel(id="aw1-3"))
    assert await house.say(Mail(messages=(first, second, over[0], third, *over[1:]))) == ""
    assert house.heard() == [first, second, over[0], third, *over[1:]]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((admit("aw1-1"), admit("aw1-2"), admit("aw1-3")), "more than its 2 requests"),
        ((admit("aw2-1"),), "not its own"),
        ((admit("aw1-1"), admit("aw1-1")), "not its own"),
    ],
)
async def test_a_front_that_takes_what_is_not_its_own_is_given_up(
    house: House, messages: tuple[Admit, ...], said: str
) -> None:
    assert said in await house.say(Mail(messages=messages))
    assert house.process.killed
    heard = house.heard()
    brought = [message.request.id for message in heard if isinstance(message, Admit)]
    assert len(brought) < len(messages)
    assert sorted(message.id for message in heard if isinstance(message, Cancel)) == brought


async def test_what_is_no_message_of_the_conversation_gives_it_up(house: House) -> None:
    assert "no message" in await house.say(Ping())
    assert house.process.killed


async def test_text_too_large_for_one_frame_goes_choice_by_choice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(tokens: int) -> ForFront:
        return StepTokens(others=tuple(ChoiceTokens(id=f"aw1-{n}", index=0, tokens=(1,) * tokens) for n in range(3)))

    received: list[tuple[ForFront, ...]] = []
    monkeypatch.setattr("triolet.actors.supervisor.frame.MAX_FRAME", 300)
    for tokens in (10, 200):
        house.line.send_texts([text(tokens)])
        for _ in range(1 if tokens == 10 else 4):
            message = await house.link.receive()
            assert isinstance(message, Texts)
            received.append(message.texts)
    assert [len(cast("StepTokens", texts[0]).others) for texts in received] == [3, 0, 1, 1, 1]


@pytest.mark.parametrize("too_large", [False, True])
async def test_a_front_hears_whole_steps_in_order(
    house: House, monkeypatch: pytest.MonkeyPatch, too_large: bool
) -> None:
    if too_large:
        monkeypatch.setattr("triolet.actors.supervisor.frame.MAX_FRAME", 100)  # each message in a frame of its own
    ids = ("aw1-1", "aw1-2"), ("aw1-2",), ("aw1-1", "aw1-2")
    steps = [StepTokens(ids=ids[n // 3], rows=((n,),) * len(ids[n // 3])) for n in range(9)]
    heard: list[ToDetokenizer] = []
    link = FrontLink(
        house.link, OpenFront(process="aw1", settings=SETTINGS, clock=0.0), on_drain=never, on_reload=never
    )
    link.serve(heard.extend, never, never)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        house.line.send_texts([*steps[:4]])
        for step in steps[4:]:
            house.line.send_texts([step])
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == steps


async def test_a_report_that_does_not_come_is_not_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triolet.actors.fronts.front_line.REPORT_SECONDS", 0.05)
    assert not await house.line.report()
    assert house.line.last is None


async def test_a_report_that_cannot_be_read_counts_as_none_and_ends_nothing(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    figures = ProcessFigures(tasks=1, fds=1, rss_bytes=1, cpu_seconds=0.5)
    good = msgspec.msgpack.encode(FrontReport(live=1, accounts=Accounts().figures(), process=figures))
    read: list[bool] = []

    async def ask() -> None:
        read.append(await house.line.report())

    async with trio.open_nursery() as front:
        front.start_soon(house.line.converse, lambda: None)
        for body in (b"\xc1", b"", good):
            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                while not isinstance(asked := await house.link.receive(), Inquiry):
                    pass
                await house.link.send(InquiryAnswer(number=asked.number, body=body))
        await house.front.send_eof()
    assert read == [False, False, True]
    assert house.line.last is not None
    assert not house.process.killed
    assert [record.message.partition(":")[0] for record in caplog.records] == ["web-0"]  # said once
