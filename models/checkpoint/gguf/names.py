"""The names of a file's tensors in the family's own checkpoints."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from ...errors import CheckpointError, UnsupportedModel
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


def names_of(tensors: dict[str, PlacedTensor], row: Architecture) -> dict[str, Stored]:
    """By the family's name. Raises UnsupportedModel for a tensor that the architecture is not known to have."""
    found: dict[str, Stored] = {}
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
            for expert in range(info.shape[0]):
                found[own.format(expert)] = Stored(name, info.shape[1:], expert)
        elif match["name"] == "attn_k_b":
            found[own] = _keys_and_values(name, tensors)
        elif match["name"] == "ffn_gate_inp_shexp":
            found[own] = Stored(name, (1, info.shape[-1]))  # one row, which the file has as a vector
        else:
            found[own] = Stored(name, info.shape, swapped=swapped)
    return found


def _keys_and_values(name: str, tensors: dict[str, PlacedTensor]) -> Stored:
    """Keys [heads, rank, plain] and values [heads, value, rank] as the one matrix that the family has."""
    values = name.replace("attn_k_b", "attn_v_b")
    keys, others = tensors[name].shape, tensors[values].shape if values in tensors else None
    if others is None or not len(keys) == len(others) == 3 or (keys[0], keys[1]) != (others[0], others[2]):
        raise CheckpointError(
            values, others, f"expected [heads, value, rank] beside {name}, [heads, rank, plain] {keys}"
        )
    heads, rank, plain = keys
    return Stored(name, (heads * (plain + others[1]), rank), values=values)


def _family_name(layer: str | None, name: str, row: Architecture) -> str | None:
    if layer is None:
        return TENSORS.get(name)
    own = {**LAYER_TENSORS, **row.tensors}.get(name)
    return None if own is None else f"model.layers.{int(layer)}.{own}"
