"""Computes figures from time stamps. Pure, so that tests can check exact values.

A round is `batch` sequences submitted together. Prefill lasts until the last of them has its first token, then decode
begins. Tokens that faster sequences have before that count for neither rate, but do count as output.
"""

import statistics
from collections.abc import Sequence

from msgspec import Struct


class Arrival(Struct, frozen=True, array_like=True):
    """Tokens of one sequence that arrived together, with the time in seconds."""

    time: float
    sequence: int
    tokens: int


class Round(Struct, frozen=True, kw_only=True):
    """One repetition: when it was submitted, what arrived when, and the total time of forward passes."""

    submitted: float
    prompt_tokens: int  # of one sequence
    batch: int
    arrivals: Sequence[Arrival]  # in order of time
    model_seconds: float


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of one round, or the medians of several."""

    prefill_tok_s: float
    decode_tok_s: float
    full_batch_tok_s: float  # decode while every sequence runs: from the last first token to the first end
    output_tok_s: float
    step_ms_p50: float
    outside_model_share: float


def figures_of(measured: Round) -> Figures:
    """The figures of one round. Raises ValueError if a sequence has no token."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    gaps: list[float] = []
    for arrival in measured.arrivals:
        if arrival.sequence in last:
            # Text of an incomplete character arrives with the next token, so the gap spans several steps.
            gaps += [(arrival.time - last[arrival.sequence]) / arrival.tokens] * arrival.tokens
        first.setdefault(arrival.sequence, arrival.time)
        last[arrival.sequence] = arrival.time
    if len(first) < measured.batch:
        raise ValueError(f"only {len(first)} of {measured.batch} sequences brought a token")
    prefilled, ended = max(first.values()), max(last.values())
    total = ended - measured.submitted
    first_end = min(last.values())
    decoded = sum(arrival.tokens for arrival in measured.arrivals if arrival.time > prefilled)
    together = sum(arrival.tokens for arrival in measured.arrivals if prefilled < arrival.time <= first_end)
    return Figures(
        prefill_tok_s=measured.prompt_tokens * measured.batch / (prefilled - measured.submitted),
        decode_tok_s=decoded / (ended - prefilled) if decoded else 0.0,
        full_batch_tok_s=together / (first_end - prefilled) if together else 0.0,
        output_tok_s=sum(arrival.tokens for arrival in measured.arrivals) / total,
        step_ms_p50=statistics.median(gaps) * 1000 if gaps else 0.0,
        outside_model_share=1 - measured.model_seconds / total,
    )


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure separately."""
    return Figures(
        **{name: statistics.median(getattr(figures, name) for figures in rounds) for name in Figures.__struct_fields__}
    )
