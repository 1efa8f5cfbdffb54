"""Orders in which the programs of a launch are interpreted."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from triolet.kernels.gpu.interpreter import interpreter

ORDERS: dict[str, Callable[[list[int]], None]] = {
    "as numbered": lambda _programs: None,
    "backwards": list.reverse,
    "shuffled": lambda programs: random.Random(7).shuffle(programs),
    "shuffled otherwise": lambda programs: random.Random(8).shuffle(programs),
}


@contextmanager
def arriving(order: str) -> Generator[None]:
    """The interpreter runs the programs of every launch in this order."""
    builder: Any = interpreter.interpreter_builder  # Any: it is untyped

    def set_grid_idx(x: int, y: int, z: int) -> None:
        width, height, depth = (int(size) for size in builder.grid_dim)
        programs = list(range(width * height * depth))
        ORDERS[order](programs)
        program = programs[(x * height + y) * depth + z]
        builder.grid_idx = (program // (height * depth), program // depth % height, program % depth)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "set_grid_idx", set_grid_idx)
        yield
