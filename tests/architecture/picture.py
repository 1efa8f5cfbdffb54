"""The picture of docs/architecture.md: processes, rooms, imports between rooms and one request's way, as SVG.

Where a room stands and what lives in it is said here; which rooms there are and who imports whom is read from the code.
A room without a place, or a place without a room, is an error: the picture cannot show a house that is not there.
"""

from html import escape
from itertools import pairwise
from math import hypot
from typing import NamedTuple

from ..test_house import ROOT
from .graph import Graph, House, between_rooms, reduced

PICTURE = ROOT / "docs/architecture.svg"

WIDTH, HEIGHT = 1190, 992
_COLUMN, _ROW, _LEFT, _TOP = 212, 122, 40, 168  # pixels from one room to the next, and where the first one stands
_BOX_WIDTH, _BOX_HEIGHT = 172, 64
_ASIDE = 8  # pixels between an arrow of the way and the line between two rooms


class Place(NamedTuple):
    """Column, row and columns taken, with two lines of what lives there."""

    column: float
    row: float
    columns: float
    contents: tuple[str, str]


PLACES: dict[str, Place] = {
    "cli": Place(0, -1, 3, ("a file per subcommand: serve, chat, complete, bench", "")),
    "loadtest": Place(3.4, -1, 2.25, ("clients on the wire, benchmarks, results", "")),
    "web/transport": Place(0, 0, 1, ("connections, HTTP, TLS,", "WebSocket, timers")),
    "web/generation": Place(1, 0, 1, ("a request of any dialect,", "its stream or answer")),
    "web/routes": Place(2, 0, 1, ("generation, WebSocket,", "operators, dashboard")),
    "web/openai": Place(0.73, 1, 0.82, ("OpenAI: bodies,", "chunks, answers")),
    "web/responses": Place(0, 1, 0.82, ("OpenAI's Responses:", "items and events")),
    "web/anthropic": Place(1.45, 1, 0.82, ("Anthropic: messages", "and their events")),
    "web/ollama": Place(2.18, 1, 0.82, ("Ollama: chat,", "generate, models")),
    "actors/tokenizer": Place(0, 2, 0.82, ("chat template,", "text to token ids")),
    "actors/gateway": Place(0.715, 2, 0.82, ("places, outbox, credit,", "accounts")),
    "web (shared)": Place(1.43, 2, 0.82, ("what a handler", "sees, keys, errors")),
    "web/pooling": Place(2.15, 2, 0.85, ("embeddings, rerank,", "score, classify")),
    "actors/admission": Place(0, 3, 0.82, ("who may enter, and", "every refusal")),
    "actors/scheduler": Place(0.715, 3, 0.82, ("plan, KV blocks,", "fair shares (pure)")),
    "actors/detokenizer": Place(1.43, 3, 0.82, ("text, stop strings,", "last words")),
    "actors/several": Place(2.15, 3, 0.85, ("several models,", "each an engine")),
    "actors/fronts": Place(0, 4, 0.82, ("several web", "processes")),
    "actors/batch": Place(0.715, 4, 0.82, ("files, batches,", "their runner")),
    "actors/observe": Place(1.43, 4, 0.82, ("metrics, traces,", "explanations, views")),
    "actors/supervisor": Place(2.11, 4, 0.9, ("worker process,", "link, restarts")),
    "actors": Place(0, 5, 0.72, ("engine and core", "wire the actors")),
    "actors/grammar": Place(0.575, 5, 0.72, ("the form of an", "answer: compiler")),
    "actors/usage": Place(1.15, 5, 0.72, ("a record of each", "ended request")),
    "actors (shared)": Place(1.725, 5, 0.72, ("turns, errors,", "histogram")),
    "web": Place(2.3, 5, 0.73, ("app: the routes,", "put together")),
    "actors/executor": Place(3.4, 4, 0.82, ("worker's loop, one", "thread for steps")),
    "models": Place(4.115, 4, 0.82, ("load: checkpoint to", "stepper")),
    "models/reference": Place(4.83, 4, 0.82, ("definitions in", "plain numpy")),
    "models/cpu": Place(3.4, 3, 0.82, ("rows, cache, weights", "of the CPU step")),
    "models/gpu": Place(4.115, 3, 0.82, ("CUDA graphs, arena,", "packets")),
    "models/encoder": Place(4.83, 3, 0.82, ("embeddings,", "rerankers")),
    "models/steps": Place(3.4, 2, 0.82, ("a step's", "sequences")),
    "models/guides": Place(4.115, 2, 0.82, ("grammars and", "their masks")),
    "models/checkpoint": Place(4.83, 2, 0.82, ("families, GGUF,", "safetensors")),
    "kernels": Place(3.4, 1, 2.25, ("a folder per operation: reference, CPU, Triton", "")),
    "models/hub": Place(3.4, 5, 0.82, ("names: fetched,", "checked, listed")),
    "models/plan": Place(4.115, 5, 0.82, ("what fits, and", "how fast")),
    "models (shared)": Place(4.83, 5, 0.82, ("memory plan, host,", "Stepper protocol")),
    "protocol": Place(0, 6.1, 5.65, ("every message, request, event, error and setting; all others may import it", "")),
}  # fmt: skip
PROCESSES = {"web process: trio, no torch": (-0.13, -0.36, 3.06, 6.22), "worker process": (3.27, 0.64, 2.31, 5.22)}
WAY = (
    "web/transport", "web/openai", "actors/gateway", "actors/tokenizer", "actors/admission", "actors/scheduler",
    "actors/supervisor", "actors/executor", "models/cpu", "models/steps", "kernels",
)  # fmt: skip
WAY_BACK = (
    "actors/executor", "actors/supervisor", "actors/scheduler", "actors/detokenizer", "actors/gateway", "web/openai",
    "web/transport",
)  # fmt: skip
_ALL_KNOW = {"protocol"}  # these arrows would cross everything
_KNOW_ALL = ("cli", "loadtest")  # likewise

STYLE = """
text { font-family: system-ui, sans-serif; fill: #1c2733; }
.title { font-size: 13px; font-weight: 600; fill: #5b6b7b; }
.name { font-size: 12.5px; font-weight: 600; }
.contents { font-size: 11.5px; fill: #5b6b7b; }
.number { font-size: 11px; font-weight: 700; fill: white; }
.process { fill: #f6f8fa; stroke: #c3ccd6; stroke-dasharray: 5 4; }
.room { fill: white; stroke: #8796a5; }
.import { stroke: #aab6c2; fill: none; marker-end: url(#import); }
.way { stroke: #0b6bcb; stroke-width: 2.5; fill: none; marker-end: url(#way); }
.back { stroke: #c2410c; stroke-width: 2.5; fill: none; marker-end: url(#back); }
"""
_COLOURS = {"import": "#aab6c2", "way": "#0b6bcb", "back": "#c2410c"}


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    def edge_towards(self, other: "Box") -> tuple[float, float]:
        """Where a straight line from this centre to the other's leaves the box."""
        (x, y), (to_x, to_y) = self.centre, other.centre
        across, down = to_x - x, to_y - y
        scale = min(
            self.width / 2 / abs(across) if across else float("inf"),
            self.height / 2 / abs(down) if down else float("inf"),
        )
        return x + across * scale, y + down * scale


def box_of(room: str) -> Box:
    place = PLACES[room]
    width = (place.columns - 1) * _COLUMN + _BOX_WIDTH
    return Box(_LEFT + place.column * _COLUMN, _TOP + place.row * _ROW, width, _BOX_HEIGHT)


def draw(house: House) -> str:
    """The SVG. Raises ValueError where rooms and places differ."""
    imports = between_rooms(house)
    for room in _KNOW_ALL:
        imports[room] = set()
    if imports.keys() != PLACES.keys():
        homeless, empty = imports.keys() - PLACES.keys(), PLACES.keys() - imports.keys()
        raise ValueError(f"rooms without a place: {sorted(homeless)}; places without a room: {sorted(empty)}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Triolet: processes, folders, imports and the way of one request</title>",
        f"<style>{STYLE}</style>",
        "<defs>",
        *(_arrow_head(name, colour) for name, colour in _COLOURS.items()),
        "</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *(_process(name, *place) for name, place in PROCESSES.items()),
        *_imports(imports),
        *(_room(room) for room in sorted(imports)),
        *_way(WAY, "way", first=1),
        *_way(WAY_BACK, "back", first=len(WAY) + 1),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrow_head(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
    )


def _process(name: str, column: float, row: float, columns: float, rows: float) -> str:
    x, y, width, height = _LEFT + column * _COLUMN, _TOP + row * _ROW, columns * _COLUMN, rows * _ROW
    return (
        f'<rect class="process" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="10"/>'
        f'<text class="title" x="{x + 12:.0f}" y="{y + 22:.0f}">{escape(name)}</text>'
    )


def _room(room: str) -> str:
    box = box_of(room)
    x = box.x + 10
    first, second = PLACES[room].contents
    return (
        f'<rect class="room" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="6"/>'
        f'<text class="name" x="{x:.0f}" y="{box.y + 24:.0f}">{escape(room)}</text>'
        f'<text class="contents" x="{x:.0f}" y="{box.y + 41:.0f}">{escape(first)}</text>'
        f'<text class="contents" x="{x:.0f}" y="{box.y + 55:.0f}">{escape(second)}</text>'
    )


def _imports(imports: Graph) -> list[str]:
    """An arrow for every import that no longer way implies."""
    lines: list[str] = []
    for room, others in sorted(reduced(imports).items()):
        for other in sorted(others - _ALL_KNOW):
            (x, y), (to_x, to_y) = (
                box_of(room).edge_towards(box_of(other)),
                box_of(other).edge_towards(box_of(room)),
            )
            lines.append(f'<path class="import" d="M{x:.0f} {y:.0f} L{to_x:.0f} {to_y:.0f}"/>')
    return lines


def _way(rooms: tuple[str, ...], kind: str, first: int) -> list[str]:
    """Arrows from room to room, beside the straight line between them, and a number on each room's upper edge."""
    lines: list[str] = []
    boxes = [box_of(room) for room in rooms]
    for box, following in pairwise(boxes):
        (x, y), (to_x, to_y) = box.edge_towards(following), following.edge_towards(box)
        scale = _ASIDE / hypot(to_x - x, to_y - y)
        right, down = (to_y - y) * scale, (x - to_x) * scale
        path = f"M{x + right:.0f} {y + down:.0f} L{to_x + right:.0f} {to_y + down:.0f}"
        lines.append(f'<path class="{kind}" d="{path}"/>')
    for number, box in enumerate(boxes, first):
        x, y = box.x + box.width - (14 if kind == "way" else 38), box.y
        lines.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="10" fill="{_COLOURS[kind]}"/>')
        lines.append(f'<text class="number" x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{number}</text>')
    return lines


def _legend() -> list[str]:
    words = ("imports (what a longer way implies is left out)", "a request's way in", "its tokens' way back")
    return [
        f'<path class="{kind}" d="M{x} 22 L{x + 40} 22"/><text class="contents" x="{x + 48}" y="26">{word}</text>'
        for x, kind, word in zip((12, 360, 530), ("import", "way", "back"), words, strict=True)
    ]
