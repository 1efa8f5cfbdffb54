"""Runs one turn of our engine for `triolet bench peers`: with a worker process, on the served path."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio
from msgspec import Struct

from ...actors.engine import Engine, open_engine
from ...cli.options import build_settings, typed_engine_options
from ...cli.process import run_or_refuse
from ...protocol.events import Failed, Token
from ...protocol.requests import Generate, TokenPrompt
from ...protocol.sampling import Sampling
from ...protocol.settings import EngineSettings, ServeSettings
from ...protocol.steps import LoadProgress, Ready
from .cases import Case, value_of
from .round import RoundLoad, refuse_load, run_round, take_memory

BITS: Final = {"int8": 8, "fp8": 8, "fp8-block": 8, "w8a8": 8, "int4": 4, "int4-128": 4}
AS_STORED: Final = "as stored"  # in the description of a checkpoint's own codes
BLOCK_TOKENS: Final = 64
WARM_UP_PROMPT: Final = 64  # tokens; as the programs in loadtest/peers
# Prompts whose answers are compared with the reference: their lengths, and the tokens per answer.
CHECKED_PROMPTS: Final = (3, 17, 40, 70)
CHECKED_TOKENS: Final = 24


class Variant(Struct, frozen=True):
    """`--variant NAME=OPTIONS`: our engine with these options."""

    name: str
    options: str
    settings: EngineSettings


class CheckedAnswer(Struct, frozen=True):
    """What the served engine answered greedily: for the comparison with the reference."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


class VariantTurn(Struct, frozen=True):
    ready: Ready
    values: dict[str, list[float]]
    answers: tuple[CheckedAnswer, ...]

    def token_bytes(self, case: Case) -> float:
        """What a token of one sequence reads, in the middle of the answer: weights, and the sequence's cache."""
        assert self.ready.work is not None
        return self.ready.work.weight_bytes + self.ready.work.kv_bytes * (case.prompt_tokens + case.output_tokens / 2)


@click.command(add_help_option=False)
@typed_engine_options
def _engine(**values: Any) -> None:  # Any: click's values
    """Never run; it defines which options a variant may have."""


def read_variant(text: str, model: Path | None, threads: int | None, cases: Sequence[Case]) -> Variant:
    """Options as for `triolet serve`, with the memory that the cases need. Raises ValueError, or click's error."""
    name, equals, options = text.partition("=")
    if not (name.strip() and equals):
        raise ValueError(f'"{text}" is not NAME=OPTIONS, as in "int8=--quantize int8"')
    values = _engine.make_context(f"--variant {name.strip()}", shlex.split(options)).params
    if values.pop("model") is not None:
        raise ValueError(f'"{text}" names a model; all variants run the MODEL of the command')
    if threads is not None:
        values["threads"] = threads
    longest = max(case.prompt_tokens + case.output_tokens for case in cases)
    if values.get("max_model_len") is None:
        values["max_model_len"] = -(-max(longest, max(CHECKED_PROMPTS) + CHECKED_TOKENS) // BLOCK_TOKENS) * BLOCK_TOKENS
    batch = max(max(case.batch for case in cases), len(CHECKED_PROMPTS))
    settings = build_settings(None if model is None else str(model), {**values, "max_running": batch}).engine
    return Variant(name.strip(), options.strip(), settings)


def bits_of(ready: Ready) -> int:
    """Of a weight; where the checkpoint's codes run as they are stored, the whole part of the mean, scales included."""
    if ready.quantize == "none" and AS_STORED in ready.dtype and ready.work is not None:
        return int(8 * ready.work.all_weight_bytes / ready.parameters)
    return BITS.get(ready.quantize) or (32 if ready.dtype == "float32" else 16)


def run_variant(
    variant: Variant, cases: Sequence[Case], salt: str, on_progress: Callable[[LoadProgress], None],
    on_value: Callable[[], None], *, check: bool,
) -> VariantTurn:  # fmt: skip
    """One turn: load, warm up, measure every case. With `check`, also answer the checked prompts, all at once."""
    turns: list[VariantTurn] = []

    async def measure(engine: Engine) -> None:
        if engine.ready is None:
            raise click.ClickException("the worker ended before it could be measured")
        await take_memory(engine, on_progress)
        values: dict[str, list[float]] = {}
        for case in cases:
            load = RoundLoad(prompt_tokens=case.prompt_tokens, output_tokens=case.output_tokens, batch=case.batch)
            refuse_load(load, engine.ready)
            shorter = RoundLoad(
                prompt_tokens=min(WARM_UP_PROMPT, case.prompt_tokens), output_tokens=2, batch=case.batch
            )  # fmt: skip
            await run_round(engine, shorter, f"{salt}.{case.name}.warm-up")
            values[case.name] = []
            for repeat in range(case.repeats):
                measured = await run_round(engine, load, f"{salt}.{case.name}.{repeat}")
                values[case.name].append(value_of(case, measured))
                on_value()
        answers = await greedy_answers(engine, engine.ready.vocab_size) if check else ()
        turns.append(VariantTurn(engine.ready, values, answers))

    settings = ServeSettings(engine=variant.settings)

    async def run() -> None:
        async with open_engine(settings, on_progress) as engine:
            await measure(engine)

    run_or_refuse(run)
    return turns[0]


async def greedy_answers(engine: Engine, vocab_size: int) -> tuple[CheckedAnswer, ...]:
    """The checked prompts run together as mixed lengths; their ids are spread over the vocabulary."""
    answers: dict[int, CheckedAnswer] = {}

    async def ask(index: int, length: int) -> None:
        prompt = tuple((7919 * (place + 1) * (index + 1)) % vocab_size for place in range(length))
        request = Generate(
            id=engine.gateway.new_id(),
            model=engine.model_name,
            prompts=(TokenPrompt(token_ids=prompt),),
            sampling=Sampling(temperature=0.0, logprobs=0),  # whose records carry the ids
            max_tokens=CHECKED_TOKENS,
            ignore_eos=True,
            skip_special_tokens=False,
        )
        tokens: list[int] = []
        async for event in engine.stream(request):
            match event:
                case Token(logprobs=logprobs):
                    tokens += [each.token_id for each in logprobs]
                case Failed(code=code, message=message):
                    raise click.ClickException(f"a checked prompt failed: {message} ({code})")
                case _:
                    pass
        answers[index] = CheckedAnswer(prompt, tuple(tokens))

    async with trio.open_nursery() as nursery:
        for index, length in enumerate(CHECKED_PROMPTS):
            nursery.start_soon(ask, index, length)
    return tuple(answers[index] for index in sorted(answers))


def plain(settings: EngineSettings) -> dict[str, Any]:  # Any: JSON values
    """The settings that differ from the defaults, for the record and for the reference's loader."""
    default, values = map(msgspec.to_builtins, (EngineSettings(model=settings.model), settings))
    return {name: value for name, value in values.items() if value != default[name]}
