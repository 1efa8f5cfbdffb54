"""A chart as inline SVG: no script, no library. Colours are the page's variables, so dark mode can change them."""

import math
from html import escape
from typing import Final, NamedTuple

from .charts import Chart, Line

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 44, 44  # the title and, below it, the lines' names are on top
COLOURS: Final = ("var(--first)", "var(--second)", "var(--third)", "var(--fourth)")


class _Scale(NamedTuple):
    low: float
    high: float
    begin: float  # pixels
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        place = (math.log10(max(value, self.low)) if self.log else value) - low
        return self.begin + (self.end - self.begin) * place / (high - low)

    def ticks(self) -> list[float]:
        return _decades(self.low, self.high) if self.log else nice_ticks(self.low, self.high)


def svg(chart: Chart) -> str:
    xs = [x for line in chart.lines for x in line.xs]
    ys = [y for line in chart.lines for y in line.ys] + ([chart.limit[0]] if chart.limit else [])
    low, high = chart.x_range or (min(xs), max(xs))
    x = _scale(low, high, LEFT, WIDTH - RIGHT, log=chart.log_x)
    bottom = min(ys) if chart.log_y else 0.0
    y = _scale(bottom, max(ys) * 1.04, HEIGHT - BOTTOM, TOP, log=chart.log_y)  # the top line does not touch the frame
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(chart.title)}</text>',
    ]
    if chart.shaded_until is not None and (shade := min(chart.shaded_until, x.high)) > x.low:
        width = x.at(shade) - LEFT
        parts.append(f'<rect class="shade" x="{LEFT}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - BOTTOM - TOP}"/>')
    parts += _axes(chart, x, y)
    for line, colour in zip(chart.lines, COLOURS, strict=False):
        parts.append(_dots(line, x, y, colour) if line.style == "dots" else _path(line, x, y, colour))
        parts += _labels(line, x, y)
    if chart.limit is not None:
        height = y.at(chart.limit[0])
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text class="small" x="{LEFT + 4}" y="{height - 4:.1f}">{escape(chart.limit[1])}</text>')
    return "".join([*parts, *_legend(chart), "</svg>"])


def _scale(low: float, high: float, begin: float, end: float, *, log: bool = False) -> _Scale:
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        return _Scale(low, high if high > low else low * 10, begin, end, True)
    return _Scale(low, high if high > low else low + 1, begin, end, False)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, at most `most`."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _axes(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts: list[str] = []
    floor = HEIGHT - BOTTOM
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{at + 4:.1f}">{_number(tick)}</text>')
    for tick in x.ticks():
        at = x.at(tick)
        parts.append(f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{floor + 15}">{_number(tick)}</text>')
    parts.append(f'<text class="small" text-anchor="middle" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}">'
                 f"{escape(chart.x_label)}</text>")  # fmt: skip
    middle = (TOP + floor) / 2
    parts.append(f'<text class="small" text-anchor="middle" transform="rotate(-90 12 {middle})" x="12" y="{middle}">'
                 f"{escape(chart.y_label)}</text>")  # fmt: skip
    return parts


def _path(line: Line, x: _Scale, y: _Scale, colour: str) -> str:
    points = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(line.xs, line.ys, strict=True))
    return f'<polyline style="stroke:{colour}" points="{points}"/>'


def _dots(line: Line, x: _Scale, y: _Scale, colour: str) -> str:
    """All dots in one path; a thousand elements would make the page slow."""
    points = "".join(f"M{x.at(a):.1f} {y.at(b):.1f}h0" for a, b in zip(line.xs, line.ys, strict=True))
    return f'<path class="dots" style="stroke:{colour}" d="{points}"/>'


def _labels(line: Line, x: _Scale, y: _Scale) -> list[str]:
    """Below their dots; those on the right end there, so that they stay inside."""
    parts: list[str] = []
    for a, b, label in zip(line.xs, line.ys, line.labels, strict=False):
        left = x.at(a) < WIDTH / 2
        side = f'text-anchor="{"start" if left else "end"}" x="{x.at(a) + (6 if left else -6):.1f}"'
        parts.append(f'<text class="small" {side} y="{y.at(b) + 12:.1f}">{escape(label)}</text>')
    return parts


def _legend(chart: Chart) -> list[str]:
    if len(chart.lines) < 2:
        return []
    parts: list[str] = []
    left = LEFT
    for line, colour in zip(chart.lines, COLOURS, strict=False):
        parts.append(f'<text class="small" style="fill:{colour}" x="{left}" y="33">{escape(line.name)}</text>')
        left += 6 * len(line.name) + 16
    return parts


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
