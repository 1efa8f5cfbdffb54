"""What `triolet bench peers` measures: the loads, and how times of peers and ours become figures. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from .figures import Arrival, Figures, Round, figures_of


class Case(Struct, frozen=True, kw_only=True):
    """`batch` sequences submitted together, each with `prompt_tokens` and an answer of `output_tokens`."""

    name: str
    title: str
    prompt_tokens: int
    output_tokens: int
    batch: int
    repeats: int  # per turn; the turn's value is their median
    figure: Literal["prefill_tok_s", "full_batch_tok_s", "output_tok_s"]


DEFAULT_VARIANTS: Final = ("int8=--quantize int8", "int4=--quantize int4", "bfloat16=--dtype bfloat16")
ONE: Final = "decode_1"  # the case of a single sequence, which reads all weights for each token
CASES: Final = {
    case.name: case
    for case in (
        Case(
            name="prefill_512", title="prefill of 512", prompt_tokens=512, output_tokens=1, batch=1, repeats=5,
            figure="prefill_tok_s",
        ),
        Case(
            name="prefill_2048", title="prefill of 2,048", prompt_tokens=2048, output_tokens=1, batch=1, repeats=1,
            figure="prefill_tok_s",
        ),
        Case(
            name=ONE, title="decode, one sequence after 512", prompt_tokens=512, output_tokens=129, batch=1,
            repeats=3, figure="full_batch_tok_s",
        ),
        Case(
            name="batch_16", title="sixteen sequences 32 + 64, new tokens", prompt_tokens=32, output_tokens=64,
            batch=16, repeats=3, figure="output_tok_s",
        ),
        # While a scheduler prefills the last of 16 prompts in steps of 512 tokens, the first sequence already decodes
        # about 32 tokens. So the figure starts once all 16 decode, which leaves about 64 tokens of each.
        Case(
            name="batch_16_context_1024", title="sixteen at 1,024 tokens of context, decode", prompt_tokens=1024,
            output_tokens=96, batch=16, repeats=1, figure="full_batch_tok_s",
        ),
        Case(
            name="prefill_8192", title="prefill of 8,192", prompt_tokens=8192, output_tokens=1, batch=1, repeats=1,
            figure="prefill_tok_s",
        ),
        Case(
            name="decode_1_context_8192", title="decode, one sequence after 8,192", prompt_tokens=8192,
            output_tokens=65, batch=1, repeats=1, figure="full_batch_tok_s",
        ),
        Case(
            name="batch_16_context_8192", title="sixteen at 8,192 tokens of context, decode", prompt_tokens=8192,
            output_tokens=96, batch=16, repeats=1, figure="full_batch_tok_s",
        ),
    )
}  # fmt: skip
LONG: Final = 8192  # tokens of a prompt; such cases take minutes, and are measured on request
USUAL: Final = tuple(name for name, case in CASES.items() if case.prompt_tokens < LONG)


class ImpossibleTimes(ValueError):
    """A peer reported impossible times."""


def round_of(case: Case, times: Sequence[Sequence[float]]) -> Round:
    """times[sequence][i]: seconds from submission to token i."""
    if len(times) != case.batch or any(len(each) != case.output_tokens for each in times):
        wanted = f"{case.batch} sequences of {case.output_tokens} times"
        raise ImpossibleTimes(f"{case.name}: expected {wanted}, got {sorted({len(each) for each in times})}")
    if any(later < earlier for each in times for earlier, later in zip((0.0, *each), each, strict=False)):
        raise ImpossibleTimes(f"{case.name}: times must ascend from submission at 0")
    arrivals = [Arrival(time, sequence, 1) for sequence, each in enumerate(times) for time in each]
    arrivals.sort(key=lambda arrival: arrival.time)
    return Round(
        submitted=0.0, prompt_tokens=case.prompt_tokens, batch=case.batch, arrivals=arrivals, model_seconds=0.0
    )


def value_of(case: Case, measured: Round) -> float:
    """The case's figure in tokens/s."""
    figures: Figures = figures_of(measured)
    value: float = getattr(figures, case.figure)
    if value <= 0:
        raise ImpossibleTimes(f"{case.name}: the sequences never ran all at once; the figure needs more output tokens")
    return value
