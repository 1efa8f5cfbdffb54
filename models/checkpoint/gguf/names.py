"""The names of a file's tensors in the family's own checkpoints."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from ...errors import CheckpointError, UnsupportedModel
from ..experts import MAX_PIECES
from ..spec import ModelSpec
from .architectures import LAYER_TENSORS, TENSORS, Architecture
from .config import ROPE_TENSORS
from .file import PlacedTensor

_NAME: Final = re.compile(r"(?:blk\.(?P<layer>\d{1,5})\.)?(?P<name>[a-z0-9_]+)\.(?P<kind>weight|bias)")
_BARE: Final = ("attn_sinks", "exp_probs_b")  # whose name in the family has no ".weight" or ".bias"
_OF_ROWS: Final = ("attn_q", "attn_k")  # what the rotation reorders


class Stored(Struct, frozen=True):
    """Where a tensor of the family is."""

    tensor: str
    shape: tuple[int, ...]
    expert: int | None = None  # the index of its matrix in a tensor of three dimensions
    swapped: bool = False  # its rows are in the order of interleaved rotary pairs
    values: str | None = None  # the tensor of the heads' values, where `tensor` has their keys, turned round


def names_of(tensors: dict[str, PlacedTensor], row: Architecture, spec: ModelSpec) -> dict[str, Stored]:
    """By the family's name. Raises UnsupportedModel for a tensor that the architecture is not known to have."""
    found: dict[str, Stored] = {}

    def add(own: str, place: Stored) -> None:
        if own in found:
            raise CheckpointError(own, (found[own].tensor, place.tensor), "two tensors for one weight of the model")
        found[own] = place

    for name, info in tensors.items():
        beside = ".attn_v_b." in name and row.latent  # of a tensor with keys, which is read with it
        if name in ROPE_TENSORS or (beside and name.replace("attn_v_b", "attn_k_b") in tensors):
            continue
        match = _NAME.fullmatch(name)
        own = _family_name(match["layer"], match["name"], row) if match else None
        if match is None or own is None:
            raise UnsupportedModel(name, info.shape, f"a {row.model_type} model has no such tensor")
        own = own if match["name"] in _BARE else f"{own}.{match['kind']}"
        swapped = row.swapped_rows and match["layer"] is not None and match["name"] in _OF_ROWS
        if "{}" in own:
            count = 0 if spec.experts is None else spec.experts.count
            if len(info.shape) < 2 or info.shape[0] != count:
                raise CheckpointError(name, info.shape, f"expected a matrix of each of {count} experts")
            if count + len(found) > MAX_PIECES:
                raise CheckpointError(name, count, f"experts; at most {MAX_PIECES} matrices and biases are read")
            for expert in range(count):
                add(own.format(expert), Stored(name, info.shape[1:], expert))
        elif match["name"] == "attn_k_b":
            add(own, _keys_and_values(name, tensors, spec))
        elif match["name"] == "ffn_gate_inp_shexp" and len(info.shape) == 1:
            add(own, Stored(name, (1, *info.shape)))  # one row
        else:
            add(own, Stored(name, info.shape, swapped=swapped))
    return found


def _keys_and_values(name: str, tensors: dict[str, PlacedTensor], spec: ModelSpec) -> Stored:
    """Keys [heads, rank, plain] and values [heads, value, rank] as the one matrix that the family has."""
    assert spec.latent is not None, "only rows with latent attention know such a tensor"
    heads, rank, plain, value = spec.num_heads, spec.latent.kv_rank, spec.latent.plain_dim, spec.latent.value_dim
    values, expected = name.replace("attn_k_b", "attn_v_b"), ((heads, rank, plain), (heads, value, rank))
    shapes = tuple(tensors[part].shape if part in tensors else None for part in (name, values))
    if shapes != expected:
        raise CheckpointError(f"{name}, {values}", shapes, f"the settings imply the shapes {expected}")
    return Stored(name, (heads * (plain + value), rank), values=values)


def _family_name(layer: str | None, name: str, row: Architecture) -> str | None:
    if layer is None:
        return TENSORS.get(name)
    own = {**LAYER_TENSORS, **row.tensors}.get(name)
    return None if own is None else f"model.layers.{int(layer)}.{own}"
