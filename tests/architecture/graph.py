"""The import graph of the house, by rooms: every folder with modules, and the files that lie above the folders.

A file above the folders of its part (`actors/engine.py`) either puts them together or is used by them. So each part has
two rooms for its own files: `actors` for the first kind, `actors (shared)` for the second.
"""

import ast
from collections.abc import Mapping
from typing import NamedTuple

from ..test_house import imports_of, modules

WHOLE = ("protocol", "kernels", "cli", "loadtest")  # parts that are one room here
UNSEEN = ("models.demo.training",)  # what nobody imports who serves

Graph = dict[str, set[str]]


class House(NamedTuple):
    """`imports`: the modules that a module imports. `rooms`: of every module the room it is in."""

    imports: Graph
    rooms: dict[str, str]
    lines: dict[str, int]


def read_house() -> House:
    sources = {name: path.read_text() for name, path in modules().items() if not name.startswith(UNSEEN)}
    imports: Graph = {name: set() for name in sources}
    for name, source in sources.items():
        for found in imports_of(name, ast.parse(source)):
            target = found.name if found.name in sources else found.name.rpartition(".")[0]
            if found.ours and target in sources and target != name:
                imports[name].add(target)
    return House(imports, rooms_of(imports), {name: len(source.splitlines()) for name, source in sources.items()})


def rooms_of(imports: Mapping[str, set[str]]) -> dict[str, str]:
    rooms: dict[str, str] = {}
    for name in imports:
        part, *below = name.split(".")
        if part in WHOLE:
            rooms[name] = part
        elif len(below) > 1:
            rooms[name] = f"{part}/{below[0]}"
        else:
            rooms[name] = part if any(len(other.split(".")) > 2 for other in _reached(name, part, imports)) else ""
            rooms[name] = rooms[name] or f"{part} (shared)"
    return rooms


def _reached(name: str, part: str, imports: Mapping[str, set[str]]) -> set[str]:
    """What a file imports of its own part, by way of other files above the folders too."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for other in imports[waiting.pop()]:
            if other.split(".")[0] == part and other not in seen:
                seen.add(other)
                if len(other.split(".")) == 2:
                    waiting.append(other)
    return seen


def between_rooms(house: House) -> Graph:
    """Which room imports from which."""
    found: Graph = {room: set() for room in house.rooms.values()}
    for name, others in house.imports.items():
        found[house.rooms[name]] |= {house.rooms[other] for other in others} - {house.rooms[name]}
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups that can reach each other (Tarjan 1972), each sorted; none in a house without circles."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            start = stack.index(node)
            group = stack[start:]
            del stack[start:]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def reduced(graph: Mapping[str, set[str]]) -> Graph:
    """Without the arrows that a longer way implies. The graph has no circle."""

    def below(node: str) -> set[str]:
        return graph[node].union(*(below(other) for other in graph[node]))

    return {node: others.difference(*(below(other) for other in others)) for node, others in graph.items()}
