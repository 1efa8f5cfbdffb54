"""Under strict determinism a request has the same bits alone and in any company, however its prompt is cut.

And after a preemption. Companies are mixed steps, as a scheduler makes them: chunks of several prompts and decode rows
in one, some steps full and below the size from which launches of the default change, some above it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from triolet.loadtest.device.gpu_case import Figures
from triolet.loadtest.device.gpu_check import require
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel
from triolet.loadtest.device.gpu_requests import SCORED, Answered, Request, answers
from triolet.protocol.events import TokenLogprob


class Company(NamedTuple):
    strangers: int
    step_tokens: int  # at most, of a step


LENGTHS = (5, 70, 700)
COMPANIES = (Company(1, 400), Company(13, 400), Company(60, 8192))
CROSSED = 512  # tokens of a step: from here on the tables of some row kernels have another row
PREEMPTED_AFTER = 2


def check_strict(
    model: LoadedGpuModel,
    tokens: int,
    lengths: Sequence[int] = LENGTHS,
    companies: Sequence[Company] = COMPANIES,
    crossed: int = CROSSED,
) -> Figures:
    """The first and the last are preempted in company, the second one's prompt is scored."""
    draw = random.Random(0)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(model.spec.vocab_size) for _ in range(length))

    watched = [Request(prompt(length)) for length in lengths]
    watched[1] = with_prompt_scored(watched[1])
    alone = [answers(model, [one], tokens, strict=True) for one in watched]
    largest = [max(max(sizes) for _, sizes in alone)]
    for company in companies:
        # The watched ones stand at the front, at the end and between strangers.
        strangers = [Request(prompt(draw.randrange(1, max(lengths)))) for _ in range(company.strangers)]
        first, *others = [in_company(one) for one in watched]
        batch = [first, *strangers, *others]
        found, sizes = answers(model, batch, tokens, strict=True, step_tokens=company.step_tokens)
        largest.append(max(sizes))
        again = [found[0], *found[1 + company.strangers :]]
        for length, ((wanted,), _), one in zip(lengths, alone, again, strict=True):
            differs = difference(one, wanted)
            require(not differs, f"{length} tokens among {company.strangers} others: other bits than alone, {differs}")
    require(min(largest[1:]) <= crossed < max(largest[1:]), f"no company's steps are on both sides of {crossed} tokens")
    return {"sequences": len(lengths), "companies": len(companies), "tokens": tokens, "largest_step": max(largest)}


def with_prompt_scored(request: Request) -> Request:
    return Request(request.prompt, sampling=structs.replace(SCORED, prompt_logprobs=5))


def in_company(request: Request) -> Request:
    """Cut in three, of which one is a single token; preempted where its prompt is not scored."""
    length = len(request.prompt)
    cuts = tuple(cut for cut in (length // 3, length // 3 + 1) if 0 < cut < length)
    preempted = PREEMPTED_AFTER if request.sampling.prompt_logprobs is None else 0
    return Request(request.prompt, cuts, preempted, request.sampling)


def difference(found: Answered, wanted: Answered) -> str:
    """The first place where they differ; empty where they do not."""
    return _first("token", found.drawn, wanted.drawn) or _first("prompt token", found.prompt, wanted.prompt)


def _first(what: str, found: list[TokenLogprob], wanted: list[TokenLogprob]) -> str:
    for place, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"at {what} {place}: {one.token_id} {one.logprob!r}, not {other.token_id} {other.logprob!r}"
    return "" if len(found) == len(wanted) else f"{len(found)} {what}s, not {len(wanted)}"
