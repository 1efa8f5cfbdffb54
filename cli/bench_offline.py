"""`triolet bench offline`: the engine without HTTP, on the path that serves, from gateway to worker and back."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from .help import SettingsCommand
from .names import with_local_models
from .options import build_settings, engine_options

if TYPE_CHECKING:
    from ..loadtest.compare.figures import Figures
    from ..loadtest.compare.round import RoundLoad
    from ..protocol.steps import Ready


@click.command(cls=SettingsCommand)
@engine_options
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Of each sequence.")
@click.option("--output-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Of each sequence.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences at once.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Medians are of so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, every round included.")
def offline(
    model: str | None,
    prompt_tokens: int,
    output_tokens: int,
    batch: int,
    rounds: int,
    as_json: bool,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Run MODEL without HTTP: prefill and decode rates, the time of a step, and what is spent outside the model.

    \b
    triolet bench offline --quantize int8                                             one sequence
    triolet bench offline --prompt-tokens 32 --output-tokens 64 --batch 16 --json     sixteen, as JSON
    """
    settings = build_settings(model, values)
    settings = with_local_models(settings)
    from ..actors.engine import open_engine
    from ..loadtest.compare.figures import figures_of, medians
    from ..loadtest.compare.round import RoundLoad, refuse_load, run_round, take_memory
    from .process import run_or_refuse
    from .report import LoadDisplay, standard_error

    load = RoundLoad(prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch)
    measured: list[Figures] = []
    ready: list[Ready] = []
    with LoadDisplay(standard_error()) as display:

        async def measure() -> None:
            async with open_engine(settings, display) as engine:
                if engine.ready is None:
                    raise click.ClickException("the worker ended before it could be measured")
                ready.append(engine.ready)
                refuse_load(load, engine.ready)
                await take_memory(engine, display)
                display.close()
                await run_round(engine, load, "warm-up")
                measured.extend([figures_of(await run_round(engine, load, str(number))) for number in range(rounds)])

        run_or_refuse(measure)
    _keep(load, ready[0], settings.engine.threads, medians(measured))
    if as_json:
        click.echo(msgspec.json.encode(_result(load, ready[0], measured)))
    else:
        _show(load, ready[0], medians(measured))


def _keep(load: "RoundLoad", ready: "Ready", threads: int | None, figures: "Figures") -> None:
    """For predictions of `triolet plan` and the start report."""
    from ..models.host import usable_cores
    from .calibrated import keep_measured

    keep_measured(
        ready,
        threads or usable_cores(),
        decode=figures.decode_tok_s,
        prefill=figures.prefill_tok_s,
        context=load.prompt_tokens + load.output_tokens / 2,
        batch=load.batch,
    )


def _result(load: "RoundLoad", ready: "Ready", rounds: "list[Figures]") -> dict[str, object]:
    """The medians at the top level, then what they are of."""
    from ..loadtest.compare.figures import medians
    from ..loadtest.machine import versions
    from ..models.host import usable_cores

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
        "versions": {**versions(), **ready.versions},
        "cores": usable_cores(),
        "rounds": rounds,
    }


def _show(load: "RoundLoad", ready: "Ready", figures: "Figures") -> None:
    precision = ready.dtype if ready.quantize == "none" else ready.quantize
    tokens = f"{load.batch} × ({load.prompt_tokens} + {load.output_tokens}) tokens"
    click.echo(f"{ready.model}, {precision}: {tokens}; medians")
    rows = {
        "prefill": f"{figures.prefill_tok_s:,.0f} tokens/s",
        "decode": f"{figures.decode_tok_s:,.1f} tokens/s",
        "output, whole run": f"{figures.output_tok_s:,.1f} tokens/s",
        "step, p50": f"{figures.step_ms_p50:.2f} ms",
        "outside the model": f"{figures.outside_model_share:.1%}",
    }
    for label, text in rows.items():
        click.echo(f"  {label:<17}  {text:>17}")
