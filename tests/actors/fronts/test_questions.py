"""Questions of a web process: one for all who ask the same meanwhile, and never an answer to an earlier one."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.actors.fronts.questions import Questions
from triolet.protocol.fronts import Inquiry, InquiryAnswer

ASK_SECONDS = 2.0


async def test_who_asks_the_same_meanwhile_gets_the_same_answer(autojump_clock: MockClock) -> None:
    sent: list[Inquiry] = []
    questions = Questions(sent.append, ASK_SECONDS)
    heard: list[bytes] = []

    async def ask(id: str) -> None:
        heard.append(await questions.ask("standing", id) or b"")

    async with trio.open_nursery() as nursery:
        for id in ("a", "b", "a"):
            nursery.start_soon(ask, id)
        await wait_all_tasks_blocked()
        assert sorted(asked.id for asked in sent) == ["a", "b"]
        for asked in sent:
            questions.take_answer(InquiryAnswer(number=asked.number, body=asked.id.encode()))
    assert sorted(heard) == [b"a", b"a", b"b"]


async def test_an_answer_that_nobody_waited_for_is_not_the_next_one_s(autojump_clock: MockClock) -> None:
    sent: list[Inquiry] = []
    questions = Questions(sent.append, ASK_SECONDS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(questions.ask, "view")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()  # its page was closed
    questions.take_answer(InquiryAnswer(number=sent[0].number, body=b"old"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_the_last, questions, sent)
        assert await questions.ask("view") == b"new"
    assert len(sent) == 2


async def _answer_the_last(questions: Questions, sent: list[Inquiry]) -> None:
    await wait_all_tasks_blocked()
    questions.take_answer(InquiryAnswer(number=sent[-1].number, body=b"new"))


async def test_no_answer_in_time_is_none_and_a_late_one_not_the_next_one_s(autojump_clock: MockClock) -> None:
    sent: list[Inquiry] = []
    questions = Questions(sent.append, ASK_SECONDS)
    assert await questions.ask("view") is None
    late = InquiryAnswer(number=sent[0].number, body=b"late")
    assert [questions.take_answer(late) for _ in range(2)] == ["view", None]  # whose answer it was is known, once
    assert await questions.ask("view") is None


async def test_who_joined_a_question_gets_its_answer_though_the_first_has_given_up(autojump_clock: MockClock) -> None:
    sent: list[Inquiry] = []
    questions = Questions(sent.append, ASK_SECONDS)
    heard: list[bytes] = []

    async def join() -> None:
        await trio.sleep(ASK_SECONDS - 0.1)
        heard.append(await questions.ask("view") or b"")

    async def answer() -> None:
        await trio.sleep(ASK_SECONDS + 0.1)
        questions.take_answer(InquiryAnswer(number=sent[0].number, body=b"seen"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        nursery.start_soon(answer)
        assert await questions.ask("view") is None
    assert (heard, len(sent)) == ([b"seen"], 1)
