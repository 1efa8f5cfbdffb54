"""The charts of a result as one PNG, where matplotlib is installed."""

from importlib import import_module
from pathlib import Path
from typing import Any

from .charts import Chart, charts
from .result import Result
from .text_report import banner


def draw_pictures(result: Result, path: Path) -> bool:
    """False without matplotlib."""
    try:
        import_module("matplotlib").use("agg")
        pyplot: Any = import_module("matplotlib.pyplot")  # Any: optional, so no checker may count on it
    except ImportError:
        return False
    drawn = charts(result)
    rows = -(-len(drawn) // 2)
    figure, panels = pyplot.subplots(rows, 2, figsize=(12, 3.2 * rows), squeeze=False)
    for panel in panels.flat[len(drawn) :]:
        panel.set_axis_off()
    for panel, chart in zip(panels.flat, drawn, strict=False):
        _draw(panel, chart)
    figure.suptitle(banner(result) or f"{result.model} at {result.settings.url}", fontsize=9, wrap=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _draw(panel: Any, chart: Chart) -> None:  # Any: matplotlib's axes
    for line in chart.lines:
        if line.style == "dots":
            panel.scatter(line.xs, line.ys, s=4, label=line.name)
        else:
            panel.plot(line.xs, line.ys, linewidth=1, label=line.name)
    if chart.shaded_until is not None:
        panel.axvspan(0, chart.shaded_until, color="0.9", zorder=0)
    if chart.limit is not None:
        panel.axhline(chart.limit[0], color="tab:red", linewidth=0.8, linestyle="--", label=chart.limit[1])
    if chart.x_range is not None:
        panel.set_xlim(*chart.x_range)
    if chart.log_x:
        panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_title(chart.title, fontsize=9)
    panel.set_xlabel(chart.x_label, fontsize=8)
    panel.set_ylabel(chart.y_label, fontsize=8)
    panel.tick_params(labelsize=7)
    panel.grid(alpha=0.3)
    if len(chart.lines) > 1 or chart.limit is not None:
        panel.legend(fontsize=7)
