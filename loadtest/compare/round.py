"""One round of a load on our engine, on the served path: gateway, scheduler, worker, sampler and back.

Prompts are the token ids 10, 11, … so that other engines can get the same. Every sequence of every round has its own
cache salt, so the prefix cache is never used.
"""

from typing import Final

import click
import msgspec
import trio
from msgspec.structs import replace

from ...actors.engine import Engine
from ...cli.refusals import Refusal
from ...protocol.events import Failed, Finished, Token
from ...protocol.requests import Generate, TokenPrompt
from ...protocol.sampling import Sampling
from ...protocol.steps import LoadProgress, Ready, ReportProgress
from ..process import resident_bytes
from .figures import Arrival, Round

FIRST_TOKEN_ID: Final = 10  # after the special tokens at the start of vocabularies
POLL_SECONDS: Final = 0.25
LAST_PAGES: Final = 1 << 20  # bytes: what grows by less in two polls has been taken


class RoundLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one round."""

    prompt_tokens: int
    output_tokens: int
    batch: int


def refuse_load(load: RoundLoad, ready: Ready) -> None:
    if load.prompt_tokens + load.output_tokens > ready.context_length:
        raise Refusal(f"--prompt-tokens and --output-tokens together exceed the context of {ready.context_length}")
    if ready.vocab_size <= FIRST_TOKEN_ID:
        raise Refusal(f"a vocabulary of {ready.vocab_size} tokens is too small to measure with")


async def take_memory(engine: Engine, report: ReportProgress) -> None:
    """Wait until the worker has all pages of its KV cache, which it takes while no step runs: from then on prompts and
    answers are as fast as they stay. 0.1 s a gigabyte; where a hypervisor lends memory at the first touch, 2 s."""
    assert engine.ready is not None
    stage, found = LoadProgress(stage="taking memory", done=0, total=1), [0, 0, resident_bytes(engine.ready.pid)]
    while found[-1] > found[-3] + LAST_PAGES:
        report(stage)
        await trio.sleep(POLL_SECONDS)
        found.append(resident_bytes(engine.ready.pid))
    report(replace(stage, done=1))


def _prompt(length: int, vocab_size: int) -> tuple[int, ...]:
    span = vocab_size - FIRST_TOKEN_ID
    return tuple(FIRST_TOKEN_ID + index % span for index in range(length))


async def run_round(engine: Engine, load: RoundLoad, salt: str) -> Round:
    """Submit the whole batch at once and record when its tokens arrive."""
    assert engine.ready is not None
    prompt = _prompt(load.prompt_tokens, engine.ready.vocab_size)
    arrivals: list[Arrival] = []
    model_seconds = engine.scheduler_statistics().totals.model_seconds
    submitted = trio.current_time()

    async def run(sequence: int) -> None:
        request = Generate(
            id=engine.gateway.new_id(),
            model=engine.model_name,
            prompts=(TokenPrompt(token_ids=prompt),),
            sampling=Sampling(temperature=0.0),
            max_tokens=load.output_tokens,
            ignore_eos=True,
            skip_special_tokens=False,
            cache_salt=f"{salt}.{sequence}",
        )
        async for event in engine.stream(request):
            match event:
                case Token(tokens=tokens):
                    arrivals.append(Arrival(trio.current_time(), sequence, tokens))
                case Failed(code=code, message=message):
                    raise click.ClickException(f"a sequence failed: {message} ({code})")
                case Finished(reason=reason, usage=usage):
                    if usage.completion_tokens != load.output_tokens:
                        count = usage.completion_tokens
                        raise click.ClickException(f"a sequence ended after {count} tokens ({reason})")
                case _:
                    pass

    async with trio.open_nursery() as nursery:
        for sequence in range(load.batch):
            nursery.start_soon(run, sequence)
    return Round(
        submitted=submitted,
        prompt_tokens=load.prompt_tokens,
        batch=load.batch,
        arrivals=arrivals,
        model_seconds=engine.scheduler_statistics().totals.model_seconds - model_seconds,
    )
