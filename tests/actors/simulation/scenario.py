"""What a seed means: the sizes of a house, its requests and its misfortunes."""

import random
from dataclasses import dataclass

from msgspec.structs import replace

from triolet.actors.scheduler.grammars import MOST_MEMORY
from triolet.protocol.adapters import Adapter
from triolet.protocol.messages import Admit, ToDetokenizer
from triolet.protocol.requests import BeamRule, Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Step

from .device import EOS, VOCABULARY, expected_choices

Log = list[tuple[float, Step | ToDetokenizer]]  # every message of a life, with its time
HABITS = ("patient",) * 5 + ("leaves", "leaves", "slow", "grants", "grants", "stalls")


@dataclass(frozen=True)
class Scenario:
    """One run. Sizes are small on purpose: every limit shall bite."""

    num_blocks: int
    max_step_tokens: int
    max_running: int
    max_steps_in_flight: int
    outbox_tokens: int
    stall_timeout: float
    context_length: int
    death_rate: float
    max_deaths: int
    poison_rate: float
    requests: tuple[tuple[Admit, str], ...]  # each with its client's habit


def draw_scenario(rng: random.Random) -> Scenario:
    num_blocks = rng.choice((5, 8, 12, 20, 64))
    context_length = min(num_blocks * 64, 640)
    prefixes = [tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(64, 300))) for _ in range(3)]
    deadly = rng.random() < 0.5
    max_steps_in_flight = rng.randrange(1, 4)
    grammars = ("", "", "one", "two") if max_steps_in_flight <= 2 else ("",)
    requests: list[tuple[Admit, str]] = []
    for number in range(rng.randrange(4, 24)):
        admit = _draw_admit(rng, f"r{number}", context_length, prefixes, rng.choice(grammars))
        if requests and rng.random() < 0.4:
            admit = _next_turn(rng, rng.choice(requests)[0], admit, context_length)
        requests.append((admit, rng.choice(HABITS)))
    return Scenario(
        num_blocks=num_blocks,
        max_step_tokens=rng.choice((4, 16, 64, 256)),
        max_running=rng.choice((1, 1, 2, 3, 8, 16)),
        max_steps_in_flight=max_steps_in_flight,
        outbox_tokens=rng.choice((1, 4, 16, 64, 256)),
        stall_timeout=10.0,
        context_length=context_length,
        death_rate=0.01 if deadly else 0.0,
        max_deaths=3 if rng.random() < 0.1 else 1_000,
        poison_rate=0.001 if rng.random() < 0.3 else 0.0,
        requests=tuple(requests),
    )


def _draw_admit(rng: random.Random, id: str, context: int, prefixes: list[tuple[int, ...]], grammar: str) -> Admit:
    prompts = tuple(_draw_prompt(rng, context, prefixes) for _ in range(2 if rng.random() < 0.1 else 1))
    max_tokens = tuple(min(rng.choice((0, 1, 5, 40, 150, 300)), context - len(prompt)) for prompt in prompts)
    request = Generate(
        id=id,
        model="fake",
        prompts=tuple(TokenPrompt(token_ids=prompt) for prompt in prompts),
        sampling=Sampling(
            seed=rng.randrange(2**64),
            min_tokens=rng.choice((0, 0, 0, 20)),
            prompt_logprobs=1 if rng.random() < 0.1 else None,
        ),
        n=rng.choice((1, 1, 1, 1, 2, 4)),
        grammar=grammar,
        grammar_memory=MOST_MEMORY if grammar else 0,  # so that only one is built at a time
        adapter=Adapter(rng.choice("abc"), "/") if rng.random() < 0.2 else None,
        priority=rng.choice((0, 0, 0, 0, -1, 5)),
        tenant=rng.choice(("", "", "a")),
        cache_salt=rng.choice(("", "", "", "salt")),
        determinism=rng.choice(("default", "default", "strict")),
        deadline=rng.uniform(1, 20) if rng.random() < 0.1 else None,
    )
    beams = random.Random(request.sampling.seed)
    if not grammar and beams.random() < 0.15:
        n = beams.choice((1, 2, 4))
        rule = BeamRule(answers=beams.randrange(1, n + 1), early_stopping=beams.choice((False, True, "never")))
        sampling = Sampling(temperature=0.0, min_tokens=request.sampling.min_tokens)
        request = replace(request, n=n, beams=rule, sampling=sampling)
        max_tokens = tuple(max(tokens, 1) for tokens in max_tokens)
    stops = () if rng.random() < 0.5 else (EOS,) if rng.random() < 0.7 else (EOS, 7)
    return Admit(request=request, prompts=prompts, max_tokens=max_tokens, stop_token_ids=stops, eos_token_ids=(EOS,))


def _next_turn(rng: random.Random, turn: Admit, admit: Admit, context: int) -> Admit:
    """`admit` with a prompt that begins with those of `turn` and its answer, or with a part of it."""
    prompt = (*turn.prompts[0], *next(expected_choices(turn)), rng.randrange(1, VOCABULARY))[: context - 1]
    names = ("tenant", "adapter", "cache_salt", "determinism")
    request = replace(
        admit.request,
        prompts=(TokenPrompt(token_ids=prompt),),
        **{name: getattr(turn.request, name) for name in names},
    )
    return replace(
        admit, request=request, prompts=(prompt,), max_tokens=(min(admit.max_tokens[0], context - len(prompt)),)
    )


def _draw_prompt(rng: random.Random, context: int, prefixes: list[tuple[int, ...]]) -> tuple[int, ...]:
    prefix = rng.choice(prefixes) if rng.random() < 0.7 else ()
    tail = rng.choice((0, 1, 10, 64, 130)) or (0 if prefix else 1)
    prompt = prefix + tuple(rng.randrange(1, VOCABULARY) for _ in range(tail))
    return prompt[: context - 1]
