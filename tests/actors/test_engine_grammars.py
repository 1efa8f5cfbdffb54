"""Answers that must match a grammar, on the bundled model with its real worker."""

import json
import os
import signal
from typing import Any

import pytest
from llguidance import LLMatcher

from triolet.actors.engine import Engine
from triolet.protocol.events import Failed, Finished
from triolet.protocol.requests import TextPrompt, Thinking
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import LimitSettings

from .engine_house import Answer, chat, read_all, running, settings_for, submit, until, until_balanced

SCHEMA: dict[str, Any] = {  # Any: JSON
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "colour": {"enum": ["red", "green", "blue"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "description_of_the_object": {"type": "boolean"},
    },
    "required": ["name", "colour", "sizes", "description_of_the_object"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})


def check(text: str) -> None:
    """The object fits the schema."""
    found = json.loads(text)
    assert list(found) == list(SCHEMA["properties"])
    assert len(found["name"]) <= 12
    assert found["colour"] in ("red", "green", "blue")
    assert len(found["sizes"]) <= 3
    assert all(0 <= size <= 99 for size in found["sizes"])
    assert isinstance(found["description_of_the_object"], bool)


async def answers(engine: Engine, **changes: Any) -> list[Answer]:
    """Greedy and drawn answers together, and free ones among them."""
    fields: dict[str, Any] = {"max_tokens": 120, "grammar": GRAMMAR, **changes}
    seeds = (None, 1, 2, 3, 4, 5)
    guided = [submit(engine, chat("Tell me of an object."), seed=seed, **fields) for seed in seeds]
    free = [submit(engine, chat("Say hello."), seed=7), submit(engine, chat("Say hello."))]
    found = await read_all(guided + free)
    for answer in found[: len(seeds)]:
        assert answer.finished.reason == "stop"
        check(answer.text())
    return found


@pytest.mark.parametrize("inline", [False, True])
async def test_answers_match_their_schema_with_and_without_jumps(inline: bool) -> None:
    texts: list[list[str]] = []
    steps: list[int] = []
    for no_jump_ahead in (False, True):
        async with running(settings_for(inline=inline, no_jump_ahead=no_jump_ahead)) as engine:
            alone = await Answer().read(submit(engine, chat("Say hello.")))
            found = await answers(engine)
            assert found[-1].text() == alone.text()
            texts.append([answer.text() for answer in found])
            steps.append(engine.scheduler_statistics().totals.steps)
            await until_balanced(engine)
    assert texts[0][-2:] == texts[1][-2:]
    assert steps[0] < 0.8 * steps[1]


async def test_choices_parking_and_a_lost_worker_leave_the_answers_valid() -> None:
    settings = settings_for(limits=LimitSettings(outbox_tokens=8), max_step_tokens=24, max_running=4)
    async with running(settings) as engine:
        outboxes = [
            submit(
                engine, chat(f"Object {number}"), seed=number, max_tokens=120, grammar=GRAMMAR, n=2, priority=-number
            )
            for number in range(4)
        ]
        await until(lambda: engine.scheduler_statistics().totals.generated_tokens > 20, "tokens come")
        assert engine.ready is not None
        os.kill(engine.ready.pid, signal.SIGKILL)
        for answer in await read_all(outboxes):
            assert isinstance(answer.end, Finished)
            for index in range(2):
                check(answer.text(index))
        await until_balanced(engine)


async def test_every_token_has_its_log_probability() -> None:
    async with running(settings_for()) as engine:
        sampling = Sampling(temperature=0.0, logprobs=2)
        answer = await Answer().read(
            submit(engine, chat("An object."), sampling=sampling, max_tokens=120, grammar=GRAMMAR)
        )
        check(answer.text())
        logprobs = [one for event in answer.events for one in getattr(event, "logprobs", ())]
        assert len(logprobs) == answer.finished.usage.completion_tokens
        await until_balanced(engine)


async def test_thoughts_are_free_until_their_budget_is_spent() -> None:
    """Any tokens may mark thoughts: here those of two words of text."""
    async with running(settings_for()) as engine:
        begin = await engine.tokenize(TextPrompt(text="[think]", add_special_tokens=False))
        end = await engine.tokenize(TextPrompt(text="[done]", add_special_tokens=False))
        thinking = Thinking(begin=begin, end=end, open=True)
        for budget in (0, 5):
            answer = await Answer().read(
                submit(
                    engine,
                    "Object:",
                    max_tokens=150,
                    grammar=GRAMMAR,
                    thinking=thinking,
                    reasoning_budget=budget,
                    skip_special_tokens=False,
                )
            )
            thoughts, _, text = answer.text().partition(await engine.detokenize(end))
            assert bool(thoughts) == bool(budget)
            check(text)
        await until_balanced(engine)


async def test_a_grammar_that_cannot_be_built_fails_alone() -> None:
    async with running(settings_for()) as engine:
        bad, good = await read_all(
            [
                submit(engine, "a", grammar="start: ((("),
                submit(engine, "a", grammar=GRAMMAR, max_tokens=120),
            ]
        )
        assert isinstance(bad.end, Failed)
        assert bad.end.code == "grammar_failed"
        check(good.text())
        await until_balanced(engine)
