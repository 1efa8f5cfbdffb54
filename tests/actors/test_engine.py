"""The whole engine on the bundled model, with its real worker process: texts, ends, cancels and what is left behind."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from triolet.actors.engine import Engine, EngineLoadError, run_engine
from triolet.actors.observe.metrics import ledger_of, render_metrics
from triolet.protocol.errors import ApiError
from triolet.protocol.events import ChoiceFinished, Failed, Finished, Started, Token
from triolet.protocol.requests import TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import LimitSettings

from .engine_house import (
    MODEL,
    Answer,
    chat,
    read_all,
    running,
    settings_for,
    submit,
    until,
    until_balanced,
)

LONG_PROMPT = TokenPrompt(token_ids=tuple(100 + place % 900 for place in range(1500)))


async def test_a_chat_from_request_to_end_inline_and_through_the_worker() -> None:
    texts: list[str] = []
    for inline in (False, True):
        async with running(settings_for(inline=inline)) as engine:
            assert engine.ready is not None
            assert (await engine.health()).ready
            answer = await Answer().read(submit(engine, chat("What is 2 + 3?"), max_tokens=40))
            assert isinstance(answer.events[0], Started)
            assert isinstance(answer.end, Finished)
            counted = sum(event.tokens for event in answer.events if isinstance(event, Token))
            stopped = answer.finished.reason == "stop"
            assert answer.finished.usage.completion_tokens == counted + stopped
            ids = await engine.tokenize(chat("What is 2 + 3?"))
            assert answer.finished.usage.prompt_tokens == len(ids)
            assert await engine.detokenize(ids)
            texts.append(answer.text())
            await until_balanced(engine)
            assert ledger_of(await engine.report()).children == (0 if inline else 1)
            assert b"triolet_requests_finished_total" in render_metrics(await engine.report(), engine.settings)
    assert texts[0] == texts[1] != ""


async def test_cancelled_in_every_phase_and_the_ledger_balances() -> None:
    settings = settings_for(max_running=1, max_step_tokens=16, limits=LimitSettings(outbox_tokens=8))
    async with running(settings) as engine:
        statistics = engine.scheduler_statistics

        def owned() -> int:
            return statistics().blocks.owned

        async def end(id: str, phase: str) -> None:
            engine.gateway.cancel(id)
            await until(lambda: statistics().requests == len(others), f"{phase} is over")

        others: list[str] = []

        # In prefill: 1500 tokens are 94 steps of 16; it is caught after its first block.
        prefilling = submit(engine, "", prompts=(LONG_PROMPT,))
        await until(lambda: 0 < owned() < 24, "some of the prompt is computed")
        assert not any(isinstance(event, Token) for event in await prefilling.drain())

        # Queued: there is one row, and it is taken.
        queued = submit(engine, "Hello", max_tokens=100, ignore_eos=True)
        await until(lambda: statistics().waiting == 1, "the second request waits")
        others.append(prefilling.id)
        await end(queued.id, "the queued request")
        others.clear()
        await end(prefilling.id, "the prefill")
        await until_balanced(engine)

        # In decode: read as it comes.
        decoding = submit(engine, "Hello", max_tokens=1000, ignore_eos=True)
        answer = Answer()

        def cancel_at_twenty(event: object) -> None:
            if sum(event.tokens for event in answer.events if isinstance(event, Token)) >= 20:
                engine.gateway.cancel(decoding.id)

        await answer.read(decoding, cancel_at_twenty)
        assert answer.finished.reason == "cancelled"
        await until_balanced(engine)

        # Parked: nobody reads, so it stops at its credit, and another request takes the row meanwhile.
        parked = submit(engine, "Hello", max_tokens=1000, ignore_eos=True)
        await until(lambda: statistics().parked == 1, "the sequence is parked")
        await until(lambda: parked.tokens_waiting == 8, "the last token on credit has come")
        assert owned() > 0
        beside = await Answer().read(submit(engine, "Hi", max_tokens=4, ignore_eos=True))
        assert beside.finished.reason == "length"
        await end(parked.id, "the parked request")
        await until_balanced(engine)


async def several_prompts_and_choices_with_every_option(engine: Engine) -> None:
    prompt = "Once upon a time"
    sampling = Sampling(
        temperature=5.0, top_k=200, top_p=0.99, min_p=0.001, presence_penalty=0.1, frequency_penalty=0.1,
        repetition_penalty=1.1, logit_bias=((7, -5.0),), min_tokens=8, seed=11, logprobs=3, prompt_logprobs=2,
    )  # fmt: skip
    ids = await engine.tokenize(chat(prompt))
    prompts = (TokenPrompt(token_ids=ids), TokenPrompt(token_ids=ids[:5]))
    request: dict[str, Any] = {"prompts": prompts, "n": 2, "sampling": sampling, "max_tokens": 8, "echo": True}
    first, again = [await Answer().read(submit(engine, "", **request)) for _ in range(2)]
    finished = [event for event in first.events if isinstance(event, ChoiceFinished)]
    assert sorted(event.index for event in finished) == [0, 1, 2, 3]
    assert first.finished.usage.prompt_tokens == len(ids) + 5
    assert first.finished.usage.completion_tokens == 4 * 8
    for index, prompt_ids in enumerate((ids, ids, ids[:5], ids[:5])):
        assert first.text(index) == again.text(index)  # same seed, same text
        logprobs = [
            logprob
            for event in first.events
            if isinstance(event, Token) and event.index == index
            for logprob in event.logprobs
        ]
        assert [logprob.token_id for logprob in logprobs[: len(prompt_ids)]] == list(prompt_ids)
        assert logprobs[0].logprob is None
        assert len(logprobs) == len(prompt_ids) + 8
        assert all(len(logprob.top) == 3 for logprob in logprobs[len(prompt_ids) :])
        assert all(logprob.logprob is not None and logprob.logprob <= 0 for logprob in logprobs[1:])
    assert first.text(0) != first.text(1)  # each choice has its own seed
    await until_balanced(engine)


async def a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    whole = await Answer().read(submit(engine, "Once", max_tokens=12, ignore_eos=True))
    stop = whole.text()[len(whole.text()) // 2 :][:3]
    cut = await Answer().read(submit(engine, "Once", max_tokens=12, ignore_eos=True, stop=(stop,)))
    assert cut.text() == whole.text()[: whole.text().index(stop)]
    assert cut.finished.reason == "stop"
    assert [event.stop_reason for event in cut.events if isinstance(event, ChoiceFinished)] == [stop]
    await until_balanced(engine)


async def two_hundred_streams_at_once_all_finish(engine: Engine) -> None:
    outboxes = [
        submit(engine, chat(f"Count from {place} to {place + 9}."), seed=place, max_tokens=24) for place in range(200)
    ]
    answers = await read_all(outboxes)
    assert all(isinstance(answer.end, Finished) for answer in answers)
    assert all(answer.finished.usage.completion_tokens > 0 for answer in answers)
    await until_balanced(engine)


async def a_stopped_worker_is_not_healthy_and_recovers(engine: Engine) -> None:
    assert engine.ready is not None
    stream = submit(engine, "Hello", max_tokens=30, ignore_eos=True)
    os.kill(engine.ready.pid, signal.SIGSTOP)
    try:
        began = trio.current_time()
        await until(lambda: not engine.observer.health().ready, "the stopped worker is noticed")
        assert trio.current_time() - began < 4.0  # it promises two; the rest is for a busy machine
        assert (await engine.health()).status == "silent"
    finally:
        os.kill(engine.ready.pid, signal.SIGCONT)
    await until(lambda: engine.observer.health().ready, "the worker is heard again")
    assert (await Answer().read(stream)).finished.reason == "length"
    assert engine.scheduler_statistics().totals.worker_losses == 0


async def a_parked_stream_goes_on_where_it_was(engine: Engine) -> None:
    unread = submit(engine, "Hello", max_tokens=40, ignore_eos=True)
    await until(lambda: engine.scheduler_statistics().parked == 1, "the sequence is parked")
    late = await Answer().read(unread)
    prompt = await Answer().read(submit(engine, "Hello", max_tokens=40, ignore_eos=True))
    assert late.text() == prompt.text()
    assert late.finished.usage.completion_tokens == 40


async def signals_of_a_terminal_do_not_reach_the_worker(engine: Engine) -> None:
    assert engine.ready is not None
    stream = submit(engine, "Hello", max_tokens=20, ignore_eos=True)
    os.kill(engine.ready.pid, signal.SIGINT)
    os.kill(engine.ready.pid, signal.SIGTERM)
    assert (await Answer().read(stream)).finished.reason == "length"


SCENARIOS = (
    several_prompts_and_choices_with_every_option,
    a_stop_string_ends_the_text_before_it,
    two_hundred_streams_at_once_all_finish,
    a_parked_stream_goes_on_where_it_was,
    a_stopped_worker_is_not_healthy_and_recovers,
    signals_of_a_terminal_do_not_reach_the_worker,
)


async def test_one_engine_through_many_scenarios() -> None:
    """In one process, because a start costs seconds: after each, the ledger balances and no worker was lost."""
    async with running(settings_for(limits=LimitSettings(outbox_tokens=16))) as engine:
        for scenario in SCENARIOS:
            await scenario(engine)
            await until_balanced(engine)
            assert engine.scheduler_statistics().totals.worker_losses == 0, scenario


async def test_the_end_of_the_engine_drained_or_stopped() -> None:
    async with running(settings_for()) as engine:
        accepted = submit(engine, "Hello", max_tokens=8, ignore_eos=True)
        unread = submit(engine, "Hello", max_tokens=1000, ignore_eos=True)
        engine.begin_drain()
        with pytest.raises(ApiError) as caught:
            submit(engine, "Hello")
        assert caught.value.code == "shutting_down"
        assert (await engine.health()).status == "draining"
        assert (await Answer().read(accepted)).finished.reason == "length"
    answer = await Answer().read(unread)
    assert isinstance(answer.end, Failed)
    assert answer.end.code == "shutting_down"


async def test_requests_submitted_together_begin_in_one_step() -> None:
    async with running(settings_for(inline=True)) as engine:
        await read_all([submit(engine, "Hello", max_tokens=1) for _ in range(16)])
        assert engine.scheduler_statistics().totals.steps == 1


async def test_a_message_in_the_turn_that_stops_the_engine_meets_nobody_that_has_gone() -> None:
    """Trio wakes the cancelled actors in any order: the scheduler may be the last, with a word for the detokenizer."""
    for _ in range(8):
        async with running(settings_for(inline=True)) as engine:
            streams = [submit(engine, "Hello", max_tokens=1000, ignore_eos=True) for _ in range(2)]
            await until(lambda engine=engine: engine.scheduler_statistics().running == 2, "both are running")  # type: ignore[misc]  # the default is the loop's value
            engine.gateway.cancel(streams[0].id)
        end = (await Answer().read(streams[1])).end
        assert isinstance(end, Failed)
        assert end.code == "shutting_down"


def broken(folder: Path, what: str) -> str:
    """A copy of the bundled checkpoint with one thing wrong."""
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    match what:
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "no weights":
            (folder / "model.safetensors").unlink()
        case "unsupported":
            (folder / "config.json").write_text(json.dumps(config | {"model_type": "wizard"}))
        case _:
            raise AssertionError(what)
    return str(folder)


@pytest.mark.parametrize(
    ("what", "code", "named"),
    [
        ("no tokenizer", "invalid_checkpoint", "tokenizer.json"),
        ("no weights", "invalid_checkpoint", "safetensors"),
        ("unsupported", "unsupported_model", "wizard"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_a_plain_sentence(
    tmp_path: Path, what: str, code: str, named: str
) -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(EngineLoadError, match=named) as caught:
            await nursery.start(run_engine, settings_for(model=broken(tmp_path / "m", what)))
        assert caught.value.code == code


async def test_a_folder_that_is_not_there_and_too_little_memory(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match="no checkpoint folder"):
        await run_engine(settings_for(model=str(tmp_path / "nowhere")))
    with pytest.raises(EngineLoadError, match="kv-cache-memory") as caught:
        await run_engine(settings_for(kv_cache_memory=1000))
    assert caught.value.code == "out_of_memory"
