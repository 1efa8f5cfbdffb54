"""The whole engine on the bundled model, with its real worker process: texts, ends, cancels and what is left behind."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from triolet.actors.engine import Engine, EngineLoadError, run_engine
from triolet.actors.observe.metrics import ledger_of, render_metrics
from triolet.protocol.errors import ApiError
from triolet.protocol.events import ChoiceFinished, Failed, Finished, PromptTokens, Started, Token
from triolet.protocol.requests import TextPrompt, TokenPrompt
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


async def the_tokens_of_prompt_and_answer_come_beside_the_text(engine: Engine) -> None:
    prompt = chat("What is 2 + 3?")
    sampling = Sampling(temperature=0.0, prompt_logprobs=2)
    fields: dict[str, Any] = {"sampling": sampling, "returns_token_ids": True, "prompt_logprobs": 2, "max_tokens": 40}
    answer = await Answer().read(submit(engine, prompt, **fields))
    (about,) = [event for event in answer.events if isinstance(event, PromptTokens)]
    assert about.token_ids == await engine.tokenize(prompt)
    assert [scores.token_id for scores in about.logprobs] == list(about.token_ids)
    assert about.logprobs[0].logprob is None
    for scores in about.logprobs[1:]:
        assert len(scores.top) == 2
        assert (scores.rank <= 2) == (scores.token_id in [top.token_id for top in scores.top])
        assert scores.rank > 2 or scores.top[scores.rank - 1].logprob == scores.logprob
    assert max(scores.rank for scores in about.logprobs) > 2  # so the ranks beyond the alternatives are seen, too
    ids = [id for event in answer.events if isinstance(event, Token) for id in event.token_ids]
    assert len(ids) == answer.finished.usage.completion_tokens
    assert answer.finished.reason == "stop"  # by a stop token, which has an id and no text
    assert await engine.detokenize(tuple(ids[:-1])) == answer.text()
    assert ids[-1] in engine.ready.eos_token_ids if engine.ready else False


async def a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    whole = await Answer().read(submit(engine, "Once", max_tokens=12, ignore_eos=True))
    stop = whole.text()[len(whole.text()) // 2 :][:3]
    cut = await Answer().read(submit(engine, "Once", max_tokens=12, ignore_eos=True, stop=(stop,)))
    assert cut.text() == whole.text()[: whole.text().index(stop)]
    assert cut.finished.reason == "stop"
    assert [event.stop_reason for event in cut.events if isinstance(event, ChoiceFinished)] == [stop]
    await until_balanced(engine)


async def a_prompt_that_is_cut_is_the_rest_of_it(engine: Engine) -> None:
    assert engine.ready is not None
    prompt, context = " once upon a time" * 3000, engine.ready.context_length
    ids = await engine.tokenize(TextPrompt(text=" once upon a time"))
    options: tuple[dict[str, Any], ...] = (
        {"truncate_prompt_tokens": 7},
        {"truncate_prompt_tokens": 7, "truncation_side": "right", "echo": True},
        {"truncate_prompt_tokens": -1, "max_tokens": 20},
    )
    for fields, length in zip(options, (7, 7, context - 20), strict=True):
        outbox = submit(engine, prompt, returns_token_ids=True, **({"max_tokens": 1} | fields))
        answer = await Answer().read(outbox)
        (about,) = [event for event in answer.events if isinstance(event, PromptTokens)]
        assert len(about.token_ids) == answer.finished.usage.prompt_tokens == length
        whole = ids * (length // len(ids) + 1)
        assert about.token_ids == (whole[:length] if "echo" in fields else whole[len(whole) - length :])
        if "echo" in fields:
            assert answer.text().startswith(await engine.detokenize(about.token_ids))
            assert len(answer.text()) < 100


async def banned_words_and_allowed_tokens(engine: Engine) -> None:
    fields: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "returns_token_ids": True}
    free = await Answer().read(submit(engine, "Once", **fields))
    ids = [id for event in free.events if isinstance(event, Token) for id in event.token_ids]
    word = await engine.detokenize(tuple(ids[9:12]))
    banned = await Answer().read(submit(engine, "Once", bad_words=(word,), **fields))
    assert word.strip() in free.text()
    assert word not in banned.text()
    assert banned.text().startswith(free.text()[: free.text().index(word)])
    assert engine.ready is not None
    allowed = sorted(set(ids[::2]))
    mask = sum(1 << id for id in allowed).to_bytes(4 * -(-engine.ready.vocab_size // 32), "little")
    sampling = Sampling(temperature=0.0, allowed_tokens=mask, logprobs=20)
    answer = await Answer().read(submit(engine, "Once", sampling=sampling, **fields))
    scores = [each for event in answer.events if isinstance(event, Token) for each in event.logprobs]
    assert len(scores) == 30
    assert {each.token_id for each in scores} <= set(allowed)
    assert {each.token_id for each in scores} != {scores[0].token_id}
    for each in scores:  # the naive form: the first of the most probable that is allowed
        best = next((top.token_id for top in each.top if top.token_id in allowed), each.token_id)
        assert each.token_id == best
    sampling = Sampling(
        temperature=0.0, allowed_tokens=(1 << ids[0]).to_bytes(len(mask), "little"), bad_words=((ids[0],),)
    )
    nothing = await Answer().read(submit(engine, "Once", sampling=sampling))
    assert isinstance(nothing.end, Failed)
    assert nothing.end.param == "allowed_token_ids"


async def an_expression_ends_the_text_before_its_match(engine: Engine) -> None:
    whole = await Answer().read(submit(engine, "Once", max_tokens=30, ignore_eos=True))
    pattern = re.escape(whole.text()[9:12]) + r"[\s\S]{2,3}"
    stop = re.search(pattern.replace("2,3", "2"), whole.text())
    assert stop
    for include in (False, True):
        fields: dict[str, Any] = {"stop_regex": (pattern,), "include_stop": include}
        cut = await Answer().read(submit(engine, "Once", max_tokens=30, ignore_eos=True, **fields))
        assert cut.text() == whole.text()[: stop.end() if include else stop.start()]
        assert [event.stop_reason for event in cut.events if isinstance(event, ChoiceFinished)] == [pattern]
    wrong = await Answer().read(submit(engine, "Once", stop_regex=("(",)))
    assert isinstance(wrong.end, Failed)
    assert wrong.end.param == "stop_regex"


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
    the_tokens_of_prompt_and_answer_come_beside_the_text,
    a_stop_string_ends_the_text_before_it,
    a_prompt_that_is_cut_is_the_rest_of_it,
    banned_words_and_allowed_tokens,
    an_expression_ends_the_text_before_its_match,
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
    with pytest.raises(EngineLoadError, match="there is no folder or file"):
        await run_engine(settings_for(model=str(tmp_path / "nowhere")))
    with pytest.raises(EngineLoadError, match="kv-cache-memory") as caught:
        await run_engine(settings_for(kv_cache_memory=1000))
    assert caught.value.code == "out_of_memory"
