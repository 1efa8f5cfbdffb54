"""A result as one self-contained HTML page, for mail or an archive: no scripts, fonts or network."""

from html import escape
from typing import Final

from ..table import html_facts, html_table
from .charts import charts
from .plots import svg
from .result import Result
from .text_report import (
    banner,
    group_rows,
    headline_rows,
    latency_rows,
    outcome_rows,
    settings_rows,
)

STYLE: Final = """
:root { color-scheme: light dark; --first:#c2570c; --second:#2563eb; --third:#0f8a5f; --fourth:#9333ea; --rule:#8884;
  --warn:#b91c1c; }
@media (prefers-color-scheme: dark) {
  :root { --first:#fb923c; --second:#7aa2ff; --third:#4ade9f; --fourth:#c99bff; --warn:#f87171; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.of { opacity: .7; margin-top: .2rem; }
.banner { border: 2px solid var(--warn); color: var(--warn); border-radius: 6px; padding: .6rem .9rem;
  font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
table.facts td, table.outcomes td:last-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.facts td:first-child { opacity: .7; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font: 11px system-ui, sans-serif; }
svg .title { font-size: 13px; font-weight: 600; } svg .tick, svg .small { opacity: .8; }
svg polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .dots { fill: none; stroke-width: 3.5; stroke-linecap: round; stroke-opacity: .6; }
svg .rule { stroke: var(--rule); stroke-width: .6; } svg .shade { fill: #8882; }
svg .limit { stroke: var(--warn); stroke-width: 1; stroke-dasharray: 4 3; }
code { overflow-wrap: anywhere; }
"""


def page(result: Result) -> str:
    warning = banner(result)
    groups = group_rows(result)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(result.name)}: load test</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(result.model)}</h1>",
        f'<p class="of">{escape(result.settings.url)}{escape(f" ({result.server})" if result.server else "")}, '
        f"{escape(result.date)}</p>",
        f'<p class="banner" role="alert">{escape(warning)}</p>' if warning else "",
        html_facts(headline_rows(result)),
        "<h2>Latencies of ordinary clients</h2>",
        html_table(latency_rows(result), "latencies"),
        f"<p>{escape(_measured_from(result))}</p>",
        f'<div class="charts">{"".join(f"<figure>{svg(chart)}</figure>" for chart in charts(result))}</div>',
        *(("<h2>By tenant, priority and client</h2>", html_table(groups, "groups")) if len(groups) > 1 else ()),
        "<h2>How requests ended</h2>",
        html_table(outcome_rows(result), "outcomes"),
        "<h2>What was asked</h2>",
        html_facts(settings_rows(result.settings)),
        f"<p><code>{escape(result.command)}</code></p>",
        f'<p class="of">{escape(_versions(result))}</p>',
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _measured_from(result: Result) -> str:
    if result.settings.arrivals is None:
        return "A closed loop: each client asked when it had been answered. Times count from when it asked."
    return "An open loop: times count from when a request was meant to start: waiting is in them, in the client too."


def _versions(result: Result) -> str:
    facts = {**result.versions, **result.machine}
    return ", ".join(f"{name} {value}" for name, value in facts.items())
