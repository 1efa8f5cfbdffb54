"""Results of `triolet bench peers` as an SVG: a panel per case, a bar per engine, a line from lowest to highest turn.
Needs no library, and its text is searchable.
"""

from html import escape
from typing import Final

from .page import Comparison

PANEL, ROW, TOP, NAMES = 300, 22, 58, 190  # pixels
BAR: Final = 0.8  # share of a panel's width for the longest line; the rest is for its number
STYLE: Final = "text { font: 12px system-ui, sans-serif; } .ours { fill: #c2570c; } .theirs { fill: #8a8f98; }"


def bars(result: Comparison) -> str:
    engines = sorted(result.engines, key=lambda engine: not engine.ours)
    found = {(row.engine, row.case): row for row in result.medians}
    width, height = NAMES + PANEL * len(result.cases), TOP + ROW * len(engines) + 16
    about = f"{result.model}, {result.machine.cpu}, {result.threads} threads; tokens/s"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20">{escape(about)}</text>',
    ]
    for place, engine in enumerate(engines):
        name = f"Triolet {engine.name}" if engine.ours else engine.name
        parts.append(f'<text x="8" y="{TOP + ROW * place + 15}">{escape(name)}</text>')
    for column, case in enumerate(result.cases):
        left = NAMES + PANEL * column
        scale = BAR * PANEL / max(found[engine.name, case.name].highest for engine in engines)
        parts.append(f'<text x="{left}" y="46">{escape(case.title)}</text>')
        for place, engine in enumerate(engines):
            row, top = found[engine.name, case.name], TOP + ROW * place
            low, high = left + row.lowest * scale, left + row.highest * scale
            parts += [
                f'<rect class="{"ours" if engine.ours else "theirs"}" x="{left}" y="{top + 3}" height="{ROW - 6}" '
                f'width="{row.median * scale:.1f}"/>',
                f'<path stroke="black" d="M{low:.1f} {top + ROW / 2}H{high:.1f}"/>',
                f'<text x="{high + 6:.1f}" y="{top + 15}">{row.median:,.0f}</text>',
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"
