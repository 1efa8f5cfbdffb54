"""An answer and those who follow it: who takes over waits for nobody."""

from collections import Counter

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from triolet.actors.gateway.outbox import Outbox
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Token
from triolet.protocol.reports import KeptFigures
from triolet.protocol.requests import Generate, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.web.generation.kept_answers import KeptAnswers
from triolet.web.generation.resumable_answer import Follower, ResumableAnswer
from triolet.web.routes.frames import Frames

SOON = 20.0


async def test_who_takes_over_does_not_wait_for_one_that_has_stopped_reading() -> None:
    request = Generate(id="r1", model="m", prompts=(TextPrompt(text="x"),), sampling=Sampling())
    answers = KeptAnswers[ResumableAnswer](1 << 20, KeptFigures(), Counter())
    answer, outbox = ResumableAnswer(request, 60.0, 60.0), Outbox("r1", lambda taken: None)
    answers.keep(answer)
    stuck, received = trio.Event(), list[bytes]()
    first = Follower("", lambda frame: stuck, lambda: None, 0)
    second = Follower("", received.append, lambda: None, 0)
    async with trio.open_nursery() as nursery:
        answer.hand_to(first)
        nursery.start_soon(_until_taken_over, answer, first)
        nursery.start_soon(answer.run, outbox, Frames("r1", 1), answers)
        await wait_all_tasks_blocked()
        for text in ("a", "b", "c"):
            outbox.put(Token(id="r1", index=0, text=text, tokens=1))
            outbox.flush()
            await wait_all_tasks_blocked()
        answer.hand_to(second)
        nursery.start_soon(answer.follow, second)
        with trio.fail_after(SOON):
            while b"".join(received).count(b'"text"') < 3:
                await wait_all_tasks_blocked()
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def _until_taken_over(answer: ResumableAnswer, follower: Follower) -> None:
    with pytest.raises(ApiError, match="Another connection"):
        await answer.follow(follower)
