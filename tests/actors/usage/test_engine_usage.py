"""A real engine, and a swarm whose clients leave at any point while workers are killed: the books balance."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import trio
from msgspec import structs

from triolet.actors.engine import Engine
from triolet.protocol.events import Token

from ..engine_house import Answer, chat, running, settings_for, submit, until, until_balanced
from .audit import disagreement
from .test_usage import rows

CLIENTS = 60
TOKENS = 40


async def kill_worker(engine: Engine) -> None:
    """Returns when there is another."""
    assert engine.ready is not None
    killed = engine.ready.pid
    os.kill(killed, signal.SIGKILL)
    await until(lambda: engine.ready is not None and engine.ready.pid != killed, "a new worker")


async def test_records_are_what_the_clients_and_the_counters_say(tmp_path: Path) -> None:
    rng, answers, seen = random.Random(7), [Answer() for _ in range(CLIENTS)], 0

    async def client(engine: Engine, number: int, answer: Answer, leaves_after: int) -> None:
        nonlocal seen
        prompt = chat("Hello " * rng.randrange(1, 30) if number % 9 else "Hello " * 5000)  # 5000 are too many: refused
        outbox = submit(engine, prompt, seed=number, max_tokens=TOKENS, ignore_eos=number % 2 == 0)
        tokens = 0

        def look(event: object) -> None:
            nonlocal tokens, seen
            if isinstance(event, Token):
                tokens += event.tokens
                seen += event.tokens
                if tokens >= leaves_after:
                    engine.gateway.cancel(outbox.id)  # also more than once, and after the end

        if not leaves_after:
            engine.gateway.cancel(outbox.id)
        await answer.read(outbox, look)

    settings = structs.replace(settings_for(), data=str(tmp_path))
    async with running(settings) as engine:
        async with trio.open_nursery() as nursery:
            for number, answer in enumerate(answers):
                leaves_after = rng.choice((0, rng.randrange(1, TOKENS), 10**9))
                nursery.start_soon(client, engine, number, answer, leaves_after)
            await until(lambda: seen > 100, "some text is there")
            await kill_worker(engine)
            await until(lambda: seen > 300, "there is more")
            await kill_worker(engine)
        await until_balanced(engine)
        assert engine.scheduler_statistics().totals.worker_losses == 2
    accounts, records = engine.accounts, rows(tmp_path / "usage.sqlite")
    assert disagreement(records, [answer.end for answer in answers]) is None
    assert Counter(record.finish_reason for record in records) == accounts.finished
    assert accounts.finished.keys() == {"stop", "length", "cancelled", "error"}  # the run says something
    assert sum(record.completion_tokens for record in records) == accounts.completion_tokens > seen // 2
    assert sum(record.prompt_tokens for record in records) == accounts.prompt_tokens
    assert sum(record.cached_tokens for record in records) == accounts.cached_tokens
    # Every token that a client got is in its record; a last one of a choice may have no text.
    got = {answer.end.id: sum(one.tokens for one in answer.events if isinstance(one, Token)) for answer in answers}
    assert all(record.completion_tokens - got[record.id] in (0, 1) for record in records)
    assert accounts.usage_records == {"written": CLIENTS, "lost": 0}
