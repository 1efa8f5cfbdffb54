"""`triolet bench offline`: the engine without HTTP, on the path that serves, from gateway to worker and back.

Prompts are the token ids 10, 11, … so that another engine can be given the same. Every sequence of every round has a
cache salt of its own, so nothing is taken from the prefix cache.
"""

import platform
import re
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio
from rich.console import Console
from rich.table import Table

from ..actors.engine import Engine
from ..models.host import usable_cores
from ..protocol.events import Failed, Finished, Token
from ..protocol.requests import Generate, TokenPrompt
from ..protocol.sampling import Sampling
from ..protocol.steps import Ready
from .bench_figures import Arrival, Figures, Round, figures_of, medians
from .events import events_of
from .options import build_settings, engine_options
from .refusals import Refusal, refuse_missing_model
from .report import LoadDisplay, standard_error
from .serving import run_or_refuse, use_engine

FIRST_TOKEN_ID: Final = 10  # beyond the special tokens that vocabularies begin with


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one round asks of the engine."""

    prompt_tokens: int
    output_tokens: int
    batch: int


@click.group()
def bench() -> None:
    """Measure the engine on this machine."""


@bench.command()
@engine_options
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Of each sequence.")
@click.option("--output-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Of each sequence.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences at once.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Medians are of so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, every round included.")
def offline(
    model: Path | None,
    prompt_tokens: int,
    output_tokens: int,
    batch: int,
    rounds: int,
    as_json: bool,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Run MODEL without HTTP: prefill and decode rates, the time of a step, and what is spent outside the model."""
    settings = build_settings(model, values)
    refuse_missing_model(settings.engine)
    load = Load(prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch)
    measured: list[Figures] = []
    ready: list[Ready] = []
    with LoadDisplay(standard_error()) as display:

        async def measure(engine: Engine) -> None:
            display.close()
            if engine.ready is None:
                raise click.ClickException("the worker ended before it could be measured")
            ready.append(engine.ready)
            _refuse_load(load, engine.ready)
            await run_round(engine, load, "warm-up")
            measured.extend([figures_of(await run_round(engine, load, str(number))) for number in range(rounds)])

        run_or_refuse(partial(use_engine, settings, measure, on_progress=display))
    if as_json:
        click.echo(msgspec.json.encode(_result(load, ready[0], measured)))
    else:
        _show(load, ready[0], medians(measured))


def _refuse_load(load: Load, ready: Ready) -> None:
    if load.prompt_tokens + load.output_tokens > ready.context_length:
        raise Refusal(f"--prompt-tokens and --output-tokens together exceed the context of {ready.context_length}")
    if ready.vocab_size <= FIRST_TOKEN_ID:
        raise Refusal(f"a vocabulary of {ready.vocab_size} tokens is too small to measure with")


def _prompt(length: int, vocab_size: int) -> tuple[int, ...]:
    span = vocab_size - FIRST_TOKEN_ID
    return tuple(FIRST_TOKEN_ID + index % span for index in range(length))


def _model_seconds(engine: Engine) -> float:
    """Seconds in the forward pass so far, as /metrics tells them."""
    found = re.search(r"^triolet_model_seconds_total (\S+)$", engine.metrics.render().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def run_round(engine: Engine, load: Load, salt: str) -> Round:
    """Submit the whole batch at once and note when its tokens come."""
    assert engine.ready is not None
    prompt = _prompt(load.prompt_tokens, engine.ready.vocab_size)
    arrivals: list[Arrival] = []
    model_seconds = _model_seconds(engine)
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
        async for event in events_of(engine.gateway.submit(request)):
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
        model_seconds=_model_seconds(engine) - model_seconds,
    )


def _result(load: Load, ready: Ready, rounds: list[Figures]) -> dict[str, object]:
    """The medians at the top level, then what they are of."""
    return {
        **msgspec.to_builtins(medians(rounds)),
        "load": load,
        "model": {
            "name": ready.model,
            "parameters": ready.parameters,
            "device": ready.device,
            "dtype": ready.dtype,
            "quantize": ready.quantize,
            "kv_cache_dtype": ready.kv_cache_dtype,
            "weights_bytes": ready.memory.weights_bytes,
        },
        "versions": {"triolet": version("triolet"), "python": platform.python_version(), **ready.versions},
        "cores": usable_cores(),
        "rounds": rounds,
    }


def _show(load: Load, ready: Ready, figures: Figures) -> None:
    precision = ready.dtype if ready.quantize == "none" else ready.quantize
    tokens = f"{load.batch} × ({load.prompt_tokens} + {load.output_tokens}) tokens"
    table = Table(title=f"{ready.model}, {precision}: {tokens}")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_row("prefill", f"{figures.prefill_tok_s:,.0f} tokens/s")
    table.add_row("decode", f"{figures.decode_tok_s:,.1f} tokens/s")
    table.add_row("output, whole run", f"{figures.output_tok_s:,.1f} tokens/s")
    table.add_row("step, p50", f"{figures.step_ms_p50:.2f} ms")
    table.add_row("outside the model", f"{figures.outside_model_share:.1%}")
    Console(highlight=False).print(table)
