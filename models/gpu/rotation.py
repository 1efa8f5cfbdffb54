"""The rotations of a model's layers on a GPU: a table of cosines and sines for each kind, read by position.

Where only a part of a head turns, or pairs lie side by side, q and k have their rows in another order (fill.py),
and dimensions that do not turn have the angle 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..checkpoint.rope import RopeSpec, query_scales, rope_tables
from ..checkpoint.spec import ModelSpec
from .arena import Arena, Layout
from .staging import Staging


class Rotation(NamedTuple):
    """Of one layer."""

    table: torch.Tensor  # float32 [positions, what turns of a head]
    growth: torch.Tensor | None  # float32 [positions]: what queries are multiplied by


def rotations(spec: ModelSpec) -> list[RopeSpec | None]:
    """Each kind once, in the order of the layers; None turns nothing."""
    return list(dict.fromkeys(layer.rope for layer in spec.layers))


def rotation_layout(spec: ModelSpec, length: int) -> Layout:
    layout = Layout()
    for index, rope in enumerate(rotations(spec)):
        layout.add(f"rotation.{index}", torch.float32, length, spec.turned_dim)
        if rope is not None and rope.query_growth:
            layout.add(f"rotation.{index}.growth", torch.float32, length)
    return layout


def fill_rotations(staging: Staging, spec: ModelSpec, buffers: Arena, length: int) -> None:
    for index, rope in enumerate(rotations(spec)):
        table, growth = _placed(buffers, index)
        staging.put(table, rope_tables(rope, spec.turned_dim, length, spec.rotary_dim))
        if growth is not None:
            staging.put(growth, query_scales(rope, length))


def layer_rotations(spec: ModelSpec, buffers: Arena) -> tuple[Rotation, ...]:
    kinds = rotations(spec)
    return tuple(_placed(buffers, kinds.index(layer.rope)) for layer in spec.layers)


def _placed(buffers: Arena, index: int) -> Rotation:
    return Rotation(buffers[f"rotation.{index}"], buffers.get(f"rotation.{index}.growth"))
