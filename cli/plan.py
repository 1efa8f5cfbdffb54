"""`triolet plan MODEL…`: what models take of a machine and how fast they can be there, without fetching or loading."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import structs

from ..models.plan.devices import DEVICES
from ..protocol.settings import EngineSettings
from .help import SettingsCommand
from .options import BUNDLED_MODEL, BUNDLED_NAME, build_settings, plan_options
from .refusals import Refusal
from .values import format_count, format_size

if TYPE_CHECKING:
    from rich.table import Table

    from ..models.plan.plan import ModelPlan, PrecisionPlan


@click.command(cls=SettingsCommand)
@click.argument("models", nargs=-1, metavar="MODEL...")
@plan_options
@click.option("--device", type=click.Choice(list(DEVICES)), help="A machine of the table.  [default: this one's CPU]")
@click.option("--price", type=click.FloatRange(min=0, min_open=True), help="Of the machine, an hour: gives costs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, every figure in bytes and seconds.")
def plan(
    models: tuple[str, ...],
    device: str | None,
    price: float | None,
    as_json: bool,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Say what each MODEL takes in each precision, how many sequences fit, and how fast it can be.

    Of a name on the hub only headers are fetched. Memory is computed by the code that plans a load; the start report of
    `triolet serve` has the same figures. Speeds here need one `triolet bench offline`; those of other machines are
    bounds from data sheets.

    \b
    triolet plan Qwen/Qwen3-8B                                    this machine
    triolet plan Qwen/Qwen3-8B --device h100 --price 2.50         one that you might rent
    """
    from ..models.errors import LoadError
    from .opened import opened_headers

    plans: list[ModelPlan] = []
    for model in models or (str(BUNDLED_MODEL),):
        settings = build_settings(model, values).engine
        try:
            with opened_headers(settings) as (name, local):
                name = name if models else BUNDLED_NAME
                plans.append(structs.replace(_plan(local, device, price), model=name))
        except LoadError as error:
            raise Refusal(f"{model}: {error}") from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plans)))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for one in plans:
        console.print(_headline(one), soft_wrap=True)
        console.print(_table(one))
        for line in _notes(one):
            console.print(f"  {line}", soft_wrap=True)


def _plan(settings: EngineSettings, device: str | None, price: float | None) -> "ModelPlan":
    from pathlib import Path

    from ..models.checkpoint.open import open_checkpoint
    from ..models.encoder.checkpoint import makes_vectors
    from ..models.host import available_memory
    from ..models.plan.plan import plan_for, plan_here
    from .calibrated import rates_here

    if makes_vectors(Path(settings.model)):
        raise Refusal(
            "this model makes vectors, and plans are of models that generate: `triolet serve` reports its memory"
        )
    checkpoint = open_checkpoint(Path(settings.model))
    if device is not None:
        return plan_for(checkpoint, settings, DEVICES[device], price)
    return plan_here(checkpoint, settings, available_memory(), partial(rates_here, "cpu"), price)


def _headline(plan: "ModelPlan") -> str:
    active = f" ({format_count(plan.active_parameters)} a token)" if plan.active_parameters < plan.parameters else ""
    return (
        f"{plan.model}: {plan.architecture}, {format_count(plan.parameters)} parameters{active}, "
        f"context {plan.context_length:,}; {plan.device} with {format_size(plan.available)} free"
    )


def _table(plan: "ModelPlan") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    fitting = [each for each in plan.precisions if each.memory is not None]
    for each in plan.precisions:
        table.add_column(each.weights, justify="right")
    for label, text in _ROWS.items():
        row = [text(each) if each in fitting else "" for each in plan.precisions]
        if any(row):
            table.add_row(label, *row)
    return table


def _bytes(size: int | None) -> str:
    return "" if size is None else format_size(size)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.{0 if rate >= 100 else 1}f}"


def _money(cost: float | None) -> str:
    return "" if cost is None else f"{cost:,.2f}" if cost >= 0.01 else f"{cost:.2g}"


def _rows() -> "dict[str, Callable[[PrecisionPlan], str]]":
    """Only called with plans that fit."""

    def of_memory(text: "Callable[[Any], str]") -> "Callable[[PrecisionPlan], str]":
        return lambda plan: text(plan.memory)

    def of_speed(text: "Callable[[Any], str]") -> "Callable[[PrecisionPlan], str]":
        return lambda plan: "" if plan.speeds is None else text(plan.speeds)

    def of_costs(text: "Callable[[Any], str]") -> "Callable[[PrecisionPlan], str]":
        return lambda plan: "" if plan.costs is None else text(plan.costs)

    return {
        "weights": of_memory(lambda memory: _bytes(memory.weights_bytes)),
        "working memory": of_memory(lambda memory: _bytes(memory.workspace_bytes)),
        "KV cache": of_memory(lambda memory: _bytes(memory.kv_bytes)),
        "KV cache per token": lambda plan: "" if plan.work is None else _bytes(plan.work.kv_bytes),
        "longest sequence, tokens": lambda plan: f"{plan.context_length:,}",
        "sequences of that length": of_memory(lambda memory: f"{memory.sequences_at_full_length:.1f}"),
        "prompts, tokens/s": of_speed(lambda speeds: _rate(speeds.prefill)),
        "one answer, tokens/s": of_speed(lambda speeds: _rate(speeds.decode)),
        "answers together, tokens/s": of_speed(
            lambda speeds: f"{speeds.many}: {_rate(speeds.decode_many)}" if speeds.decode_many else ""
        ),
        "cost of 1 M tokens: of prompts": of_costs(lambda costs: _money(costs.prompt)),
        "cost of 1 M tokens: one answer": of_costs(lambda costs: _money(costs.generated_alone)),
        "cost of 1 M tokens: together": of_costs(lambda costs: _money(costs.generated_together)),
    }


_ROWS = _rows()


def _notes(plan: "ModelPlan") -> list[str]:
    notes = [f"{each.weights}: {each.problem}" for each in plan.precisions if each.problem]
    known = [each.speeds for each in plan.precisions if each.speeds is not None]
    if any(speeds.decode is not None and not speeds.measured for speeds in known):
        notes.append(f"Speeds are bounds from {plan.source}, not measured; at the longest sequence.")
    elif known and all(speeds.decode is None for speeds in known):
        notes.append("How fast: run `triolet bench offline` with this --quantize once, then this says it.")
    elif known:
        notes.append(f"Speeds are predicted from {plan.source}; at the longest sequence.")
    return notes
