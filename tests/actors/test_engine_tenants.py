"""Two API keys on one running engine: one floods, the other asks."""

from typing import Any

import trio

from triolet.protocol.events import Finished

from .engine_house import Answer, chat, running, settings_for, submit, until, until_balanced

ROWS = 3


async def test_a_newcomer_is_answered_before_anybody_of_a_flood_and_who_made_way_says_the_same() -> None:
    """The flood's answers have 150 tokens each, so the newcomer's four come before the first of them ends."""
    prompts = [chat(f"Tell me about number {number}.") for number in range(2 * ROWS)]
    fields: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "determinism": "strict", "tenant": "flood"}
    async with running(settings_for(max_running=ROWS)) as engine:
        alone = await Answer().read(submit(engine, prompts[ROWS - 1], **fields))
        answers = [Answer() for _ in prompts]
        async with trio.open_nursery() as nursery:
            for answer, prompt in zip(answers, prompts, strict=True):
                nursery.start_soon(answer.read, submit(engine, prompt, **fields))
            await until(lambda: all(answer.text() for answer in answers[:ROWS]), "all rows are the flood's")
            newcomer = await Answer().read(submit(engine, chat("What is 2 + 3?"), max_tokens=4, tenant="other"))
            assert isinstance(newcomer.end, Finished)
            assert not any(isinstance(answer.events[-1], Finished) for answer in answers[:ROWS])
            assert not any(answer.events for answer in answers[ROWS:])  # of the flood nobody has begun meanwhile
        totals = engine.scheduler_statistics().totals
        assert (totals.displaced, totals.preemptions) == (1, 0)
        assert answers[ROWS - 1].text() == alone.text() != ""
        assert all(isinstance(answer.end, Finished) for answer in answers)
        await until_balanced(engine)
