"""What `triolet bench cpu` found: its JSON, the rows of its tables, its sentences, and the page with the picture."""

from collections.abc import Sequence
from html import escape

from msgspec import Struct

from ..loadtest.machine import QUIET, Machine
from ..loadtest.serve.charts import Chart, Line
from ..loadtest.serve.plots import svg
from ..loadtest.serve.report_html import STYLE
from ..loadtest.table import Rows, html_table
from ..models.plan.roofline import ARITHMETIC, Ceilings, StepLoad, StepWork
from .values import format_size

NEAR = 0.7  # share of the roof from which a step has little left to gain


class StepFigures(Struct, frozen=True, kw_only=True):
    """One load's step: medians of `rounds`. `reached`: the roof's time by the measured one."""

    name: str
    load: StepLoad
    rounds: int
    milliseconds: float  # the whole step, sampling included
    best_milliseconds: float
    model_milliseconds: float  # of which: the forward pass
    work: StepWork
    roof_milliseconds: float
    reached: float
    limit: str  # "arithmetic", or the level of memory that its bytes come from

    @property
    def best(self) -> float:
        """The share that the fastest step reached."""
        return self.roof_milliseconds / self.best_milliseconds

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.work.operations / self.milliseconds * 1e3


class CpuReport(Struct, frozen=True, kw_only=True):
    """`busy`: the share of the cores that others used before the measurement."""

    model: str
    weights: str
    kv_cache_dtype: str
    units: tuple[str, str]  # the formats that products with weights and with the cache run in
    machine: Machine
    versions: dict[str, str]
    busy: float
    ceilings: Ceilings
    context: int
    steps: tuple[StepFigures, ...]
    left_out: tuple[str, ...]  # loads that did not fit


def title(report: CpuReport) -> str:
    threads = report.ceilings.threads
    return (
        f"{report.model}, {report.weights}, {threads} thread{'s' if threads > 1 else ''}, after {report.context} tokens"
    )


def ceiling_rows(report: CpuReport) -> Rows:
    ceilings = report.ceilings
    rows = [("ceiling", "", "one thread", f"all {ceilings.threads}")]
    for level in ceilings.levels:
        read = f"{level.one_thread / 1e9:,.1f} GB/s", f"{level.all_threads / 1e9:,.1f} GB/s"
        rows.append((f"read {level.name}", format_size(level.read_bytes), *read))
    for unit in ceilings.units:
        name = "TOPS" if unit.format == "int8" else "TFLOPS"
        rates = f"{unit.one_thread / 1e12:.3f} {name}", f"{unit.all_threads / 1e12:.3f} {name}"
        rows.append((f"multiply {unit.format}", unit.instruction, *rates))
    return rows


def step_rows(report: CpuReport) -> Rows:
    rows = [("step", "reads", "computes", "roof", "limit", "median", "reached")]
    for step in report.steps:
        work, times = step.work, (step.roof_milliseconds, step.milliseconds)
        roof, measured = (f"{time:,.{1 if time >= 100 else 2 if time >= 10 else 3}f} ms" for time in times)
        size, operations = f"{work.bytes / 1e6:,.1f} MB", f"{work.operations / 1e9:,.3f} G"
        rows.append((step.name, size, operations, roof, step.limit, measured, _shares(step)))
    return rows


def _shares(step: StepFigures) -> str:
    """By the median and by the fastest step, if these differ: a busy machine pulls them apart."""
    median, best = f"{step.reached:.0%}", f"{step.best:.0%}"
    return median if median == best else f"{median[:-1]}–{best}"


def meaning(report: CpuReport) -> list[str]:
    """What the tables say, in sentences."""
    computing = [step.name for step in report.steps if step.limit == ARITHMETIC]
    reading = [step.name for step in report.steps if step.limit != ARITHMETIC]
    lines: list[str] = []
    if reading:
        lines.append(f"Reading is the limit of {', '.join(reading)}: fewer bytes raise the roof (--quantize, "
                     "--kv-cache-dtype), and a row more costs little where weights are most of them.")  # fmt: skip
    if computing:
        lines.append(f"Arithmetic is the limit of {', '.join(computing)}: only a faster unit raises the roof (int8).")
    worst = min(report.steps, key=lambda step: step.reached)
    if worst.reached < NEAR:
        lines.append(f"Furthest below its roof: {worst.name}, {worst.reached:.0%} ({worst.best:.0%} at best). The rest "
                     "goes into what is not counted (norms, softmax, sampling, staging) and into threads that wait "
                     "for each other.")  # fmt: skip
    else:
        lines.append(f"All steps reach {worst.reached:.0%} of their roof or more: only less work is much faster.")
    return lines


def remarks(report: CpuReport) -> list[str]:
    lines: list[str] = []
    if report.busy > QUIET:
        lines.append(f"Other programs used {report.busy:.0%} of the cores before this run: its shares are too low.")
    if any(step.reached > 1 for step in report.steps):
        lines.append(
            "A step above its roof means that the machine was slower while the ceilings were measured: run again."
        )
    if report.left_out:
        lines.append(f"Left out, as they do not fit into context, step or KV cache: {', '.join(report.left_out)}.")
    return lines


def chart(report: CpuReport) -> Chart:
    """Both axes are logarithmic: a level's roof rises with the operations for each byte, until arithmetic decides."""
    peak = report.ceilings.unit(report.units[0]).all_threads
    xs = [step.work.operations / step.work.bytes for step in report.steps]
    levels = report.ceilings.levels
    low, high = min(xs) / 2, max([*xs, *(peak / level.all_threads for level in levels)]) * 2
    roofs = [
        Line(
            name=level.name,
            xs=(low, peak / level.all_threads, high),
            ys=(low * level.all_threads / 1e12, peak / 1e12, peak / 1e12),
        )
        for level in reversed(levels)
    ]
    points = Line(
        name="steps",
        xs=tuple(xs),
        ys=tuple(step.rate / 1e12 for step in report.steps),
        style="dots",
        labels=tuple(step.name for step in report.steps),
    )
    return Chart(
        title=f"Roofline of {report.ceilings.threads} threads, {report.units[0]}",
        x_label="operations for each byte that is read",
        y_label="10¹² operations a second",
        lines=(*roofs, points),
        log_x=True,
        log_y=True,
        x_range=(low, high),
    )


def page(report: CpuReport) -> str:
    """Self-contained: no scripts, fonts or network."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(report.model)}: roofline</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(title(report))}</h1>",
            f'<p class="of">{escape(report.machine.cpu)}, {escape(report.machine.system)}</p>',
            *_paragraphs(remarks(report), "banner"),
            f"<figure>{svg(chart(report))}</figure>",
            html_table(step_rows(report), "steps"),
            *_paragraphs(meaning(report), "meaning"),
            "<h2>Ceilings</h2>",
            html_table(ceiling_rows(report), "ceilings"),
            f'<p class="of">{escape(", ".join(f"{name} {version}" for name, version in report.versions.items()))}</p>',
            "</body></html>\n",
        ]
    )


def _paragraphs(lines: Sequence[str], name: str) -> list[str]:
    return [f'<p class="{name}">{escape(line)}</p>' for line in lines]
