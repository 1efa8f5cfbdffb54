"""The picture of a chaos run: tokens over time, and its troubles, as one self-contained HTML page."""

from html import escape
from typing import Final

from ..serve.charts import Chart, Line
from ..serve.plots import svg
from ..serve.report_html import STYLE
from ..table import html_table
from .run import SIGNALS, ChaosResult, Kind

WINDOW: Final = 0.25  # seconds


def page(result: ChaosResult) -> str:
    plan = result.plan
    heading = f"{plan.streams} streams through {len(result.troubles)} troubles"
    rows = [["trouble", "at s", "health told after s", "ready after s", "next token after s"]]
    for trouble in result.troubles:
        times = (trouble.at, trouble.told, trouble.ready, trouble.token)
        rows.append([trouble.kind, *("never" if seconds is None else f"{seconds:.2f}" for seconds in times)])
    faults = "; ".join(result.faults()) or "nothing lost, nothing changed, nothing left"
    return "\n".join([
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)}</title>',
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>',
        f"<h1>{escape(heading)}</h1>",
        f'<p class="of">{result.complete} answers, {len(result.tokens)} tokens: {escape(faults)}</p>',
        f"<figure>{svg(_tokens(result))}</figure>",
        html_table(rows, "troubles"),
        "</body></html>\n",
    ])  # fmt: skip


def _tokens(result: ChaosResult) -> Chart:
    counts: dict[int, int] = {}
    for at in result.tokens:
        counts[int(at / WINDOW)] = counts.get(int(at / WINDOW), 0) + 1
    windows = range(max(counts) + 1)
    rates = Line(
        name="tokens/s",
        xs=tuple(round(window * WINDOW, 2) for window in windows),
        ys=tuple(counts.get(window, 0) / WINDOW for window in windows),
    )

    def dots(kind: Kind) -> Line:
        times = tuple(round(trouble.at, 2) for trouble in result.troubles if trouble.kind == kind)
        return Line(name=kind, xs=times, ys=(0.0,) * len(times), style="dots")

    lines = (rates, *(line for kind in SIGNALS if (line := dots(kind)).xs))
    return Chart(title="Tokens of all streams", x_label="seconds", y_label="tokens/s", lines=lines)
