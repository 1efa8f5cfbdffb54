"""`triolet bench cpu`: what this machine's cores reach, and where the steps of a model stand under it."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import structs

from .help import SettingsCommand
from .names import with_local_model
from .options import BUNDLED_MODEL, BUNDLED_NAME, build_settings, engine_options
from .refusals import Refusal
from .values import SIZE

if TYPE_CHECKING:
    from ..models.plan.roofline import Ceilings, StepLoad
    from ..protocol.settings import EngineSettings
    from ..protocol.steps import ReportProgress
    from .bench_cpu_page import CpuReport

_COUNT = click.IntRange(min=1)
LEAST_READ = 64 << 20  # bytes


@click.command(cls=SettingsCommand)
@engine_options
@click.option(
    "--rows",
    multiple=True,
    type=_COUNT,
    default=(1, 4, 16, 64),
    show_default=True,
    help="Sequences that decode in one step. May be repeated.",
)
@click.option("--context", type=click.IntRange(min=0), default=512, show_default=True, help="Tokens before each row.")
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Of the prompt, which is one step.",
)
@click.option(
    "--rounds",
    type=_COUNT,
    default=31,
    show_default=True,
    help="Medians are of so many steps, or of those in three seconds.",
)
@click.option("--read-size", type=SIZE, help="How much memory is read, as 1GB.  [default: 8 times the caches]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with the picture: FILE.html")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")  # fmt: skip
def cpu(
    model: str | None,
    rows: tuple[int, ...],
    context: int,
    prompt_tokens: int,
    rounds: int,
    read_size: int | None,
    out: Path | None,
    as_json: bool,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Measure this machine's roofline, and say how near to it MODEL runs.

    First the ceilings: how fast the cores read memory and caches, and multiply int8, bfloat16 and float32, with the
    kernels' own instructions. Then single steps of the model, without a server. A step cannot be faster than its bytes
    can be read, nor than its operations can be computed: the larger of the two is its roof. Decoding one sequence is
    bound by reading, many sequences and prompts by arithmetic. "Reached" is the share of the roof, by the median and by
    the fastest step. Far below it there is something else to blame: work that is not counted, threads that wait for
    each other, another program.

    \b
    triolet bench cpu                                         the bundled model, in about ten seconds
    triolet bench cpu Qwen/Qwen3-0.6B --quantize int8         another
    triolet bench cpu --rows 1 --rows 32 --context 4096       other steps
    triolet bench cpu --out cpu.html                          with the picture
    """
    engine = build_settings(model, values).engine
    if engine.device == "cuda":
        raise Refusal("`triolet bench cpu` measures the CPU: leave --device out")
    if out is not None and out.suffix != ".html":
        raise Refusal(f"--out {out}: the page is FILE.html; --json prints the figures for a program")
    if out is not None and not out.parent.is_dir():
        raise Refusal(f"--out {out}: there is no folder {out.parent}")
    if read_size is not None and read_size < LEAST_READ:
        raise Refusal(
            f"--read-size {read_size}: at least {LEAST_READ} bytes, or waking the threads would be most of the time"
        )
    from ..loadtest.machine import busy_share
    from ..models.ceilings import measure_ceilings
    from ..models.host import usable_cores
    from ..models.plan.roofline import StepLoad
    from ..protocol.steps import LoadProgress
    from .report import LoadDisplay, standard_error

    engine = structs.replace(with_local_model(engine), device="cpu", max_running=max(rows))
    loads = [StepLoad(sequences=count, tokens=1, context=context) for count in sorted(set(rows))]
    loads.append(StepLoad(sequences=1, tokens=prompt_tokens, context=0))
    busy = busy_share()
    with LoadDisplay(standard_error()) as display:

        def tell(what: str, done: int, total: int) -> None:
            display(LoadProgress(stage=what, done=done, total=total))

        ceilings = measure_ceilings(engine.threads or usable_cores(), read_size, tell)
        report = _measure(engine, loads, rounds, ceilings, busy, display)
    if out is not None:
        from .bench_cpu_page import page

        out.write_text(page(report), encoding="utf-8")
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        _show(report)


def _measure(
    engine: "EngineSettings",
    loads: "list[StepLoad]",
    rounds: int,
    ceilings: "Ceilings",
    busy: float,
    display: "ReportProgress",
) -> "CpuReport":
    from ..loadtest.machine import machine
    from ..models.checkpoint.open import open_checkpoint
    from ..models.errors import LoadError
    from ..models.load import load_model
    from ..models.plan.roofline import roof_of, step_work
    from ..models.step_times import StepTimer
    from ..protocol.steps import LoadProgress
    from .bench_cpu_page import CpuReport, StepFigures

    try:
        stepper, ready = load_model(engine, display)
    except LoadError as error:
        raise Refusal(str(error)) from error
    try:
        if ready.work is None:
            raise Refusal(f"{ready.model} makes vectors: `triolet bench cpu` measures models that generate text")
        spec, units = (
            open_checkpoint(Path(engine.model)).spec,
            _units(ready.dtype, ready.quantize, ready.kv_cache_dtype),
        )
        timer = StepTimer(stepper, ready, loads, rounds=rounds)
        if not timer.loads:
            raise Refusal("no such step fits: lower --context, --rounds or --prompt-tokens, or raise --kv-cache-memory")
        figures: list[StepFigures] = []
        for number, load in enumerate(timer.loads):
            display(LoadProgress(stage="running steps", done=number, total=len(timer.loads)))
            steps, work = timer.times(load), step_work(spec, ready.work, load)
            roof, seconds = roof_of(work, ceilings, *units), median(step.duration for step in steps)
            figures.append(
                StepFigures(
                    name=load.name,
                    load=load,
                    rounds=len(steps),
                    milliseconds=seconds * 1e3,
                    best_milliseconds=min(step.duration for step in steps) * 1e3,
                    model_milliseconds=median(step.model_duration for step in steps) * 1e3,
                    work=work,
                    roof_milliseconds=roof.seconds * 1e3,
                    reached=roof.seconds / seconds,
                    limit=roof.limit,
                )
            )
        display(LoadProgress(stage="running steps", done=len(timer.loads), total=len(timer.loads)))
    finally:
        stepper.close()
    return CpuReport(
        model=BUNDLED_NAME if Path(engine.model) == BUNDLED_MODEL else ready.model,
        weights=ready.dtype if ready.quantize == "none" else ready.quantize,
        kv_cache_dtype=ready.kv_cache_dtype,
        units=units,
        machine=machine(),
        versions=ready.versions,
        busy=round(busy, 3),
        ceilings=ceilings,
        context=max(load.context for load in loads),
        steps=tuple(figures),
        left_out=tuple(load.name for load in loads if load not in timer.loads),
    )


def _units(dtype: str, quantize: str, cache: str) -> tuple[str, str]:
    """The formats that products with weights and with the cache run in; codes of 4 to 8 bits are int8 there."""
    plain = dtype.split()[0]
    return (plain if quantize == "none" and plain in ("float32", "bfloat16") else "int8"), cache


def _show(report: "CpuReport") -> None:
    from rich.console import Console

    from ..loadtest.table import terminal_table
    from .bench_cpu_page import ceiling_rows, meaning, remarks, step_rows, title

    console = Console(highlight=False)
    console.print(terminal_table(ceiling_rows(report), title=report.machine.cpu, left=(0, 1)))
    console.print(terminal_table(step_rows(report), title=title(report), left=(0, 4)))
    for line in meaning(report):
        console.print(line, soft_wrap=True)
    for line in remarks(report):
        console.print(line, style="yellow", soft_wrap=True)
