"""Matrices that a checkpoint stores quantised, in the layouts of the GPU's kernels: which of them run as they are
stored, and their packing.

Integers, zero points, scales and minima are those of the file: nothing is rounded. Numbers of a table of up to 16
(MXFP4, IQ4) are bytes. What no kernel multiplies is widened to bfloat16: codes of 2 and 5 bits with minima, bytes with
zero points, NF4, FP8 unless the whole model has it in blocks, and matrices that are one here (q, k and v; gate and up;
those of a layer's experts) where the file stores them in different ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Literal, NamedTuple, cast

import numpy as np
import torch

from ...kernels.gemm.codes import CodeLayout, CodeRows, group_values
from ...kernels.gemm.gpu_weights import BYTE_GROUPS, GROUPS, PackedLinear, pack_bytes, pack_w4
from ...kernels.quantise.gpu import GROUP
from ..checkpoint.experts import ExpertWeights, MlpWeights
from ..checkpoint.open import Checkpoint
from ..checkpoint.quantised.floats import Fp8Matrix
from ..checkpoint.rope import IndexArray
from ..checkpoint.safetensors import WeightArray
from ..checkpoint.spec import ModelSpec
from ..checkpoint.stored import CHUNK_ROWS, CodedMatrix, StoredMatrix
from ..checkpoint.weights import DecoderWeights, LayerWeights, outline_weights, stored_matrices
from ..memory_plan import size

Tensor = torch.Tensor
Parts = tuple[WeightArray | None, ...]  # what is stacked by rows in one matrix
Minima = Literal["none", "zeros", "float16", "float32"]


class StoredFormat(NamedTuple):
    """How the kernels hold a matrix of integers."""

    bits: Literal[4, 8]
    group: int  # of weights that share a scale, as the kernels have it; 0: a channel
    scales: Literal["float16", "bfloat16", "float32"]
    minima: Minima = "none"


StoredFormats = dict[str, StoredFormat]  # by the names of weights_layout
FP8_BLOCK = "fp8-block"  # of --quantize, and of a whole model that is stored so: it decides its activations too
FLOAT32 = "float32"  # in its place: --dtype float32, which goes with no other format


def format_of(layout: CodeLayout, inputs: int) -> StoredFormat | None:
    """None: no kernel multiplies these integers. A float16 times a byte, of two levels, is exact in float32."""
    scales = "float32" if layout.scales == "two-level" else layout.scales
    whole = layout.group >= inputs
    if layout.bits == 4:
        minima: Minima = "float32" if layout.minima == "two-level" else layout.minima
        sizes = (32,) if minima in ("float16", "float32") else reversed(GROUPS)
        group = next((size for size in sizes if inputs % size == 0 and (whole or layout.group % size == 0)), None)
        if group is None or (minima == "none" and layout.middle != 8):
            return None
        return StoredFormat(4, group, scales, minima)
    if layout.minima != "none":
        return None
    if whole:
        return StoredFormat(8, 0, "float32")
    group = next((size for size in reversed(BYTE_GROUPS[1:]) if layout.group % size == 0), None)
    return None if group is None else StoredFormat(8, group, scales)


def merged_format(parts: Iterable[WeightArray | StoredMatrix | None]) -> StoredFormat | None:
    """Of matrices that are stacked; None where they differ, or one is no matrix of integers."""
    found = {
        format_of(part.layout, part.shape[1]) if isinstance(part, CodedMatrix) else None
        for part in parts
        if part is not None
    }
    return found.pop() if len(found) == 1 else None


def merged_parts(layer: LayerWeights) -> dict[str, Parts]:
    """The plain matrices of a layer by their names in `formats_of`, and what is stacked in each."""
    found: dict[str, Parts] = {"qkv": (layer.q, layer.k, layer.v), "o": (layer.o,)}
    experts, latent = layer.experts, layer.latent
    if latent is not None and latent.query_down is None:
        found["qkv"] = (latent.down, latent.query)
    elif latent is not None:
        found |= {"qkv": (latent.down, latent.query_down), "queries": (latent.query,)}
    if experts is None:
        return found | _mlp_parts(layer)
    found["router"] = (experts.router, experts.shared_gate)
    if experts.shared is not None:
        found |= {f"shared_{name}": parts for name, parts in _mlp_parts(experts.shared).items()}
    return found


def expert_parts(experts: ExpertWeights) -> dict[str, list[Parts]]:
    """The same of the matrices that each expert has, expert by expert."""
    return {name: [_mlp_parts(mlp)[name] for mlp in experts.experts] for name in ("gate_up", "down")}


def _mlp_parts(mlp: LayerWeights | MlpWeights) -> dict[str, Parts]:
    return {"gate_up": (mlp.gate, mlp.up), "down": (mlp.down,)}


def stored_formats(weights: DecoderWeights) -> StoredFormats:
    """Of all matrices that run as they are stored."""
    found = {name: merged_format(chain.from_iterable(stacks)) for name, stacks in _products(weights).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def stored_in_blocks(spec: ModelSpec, weights: DecoderWeights) -> bool:
    """Whether all matrices of the layers are stored as FP8_BLOCK has them: no block has rows of two of them, and no
    rows have another order here.
    """
    if spec.experts is not None or spec.latent is not None:
        return False
    parts = (part for layer in weights.layers for stack in merged_parts(layer).values() for part in stack)
    return np.array_equal(spec.rotary_order, np.arange(len(spec.rotary_order))) and all(
        isinstance(part, Fp8Matrix) and part.block == (GROUP, GROUP) and not any(n % GROUP for n in part.shape)
        for part in parts
        if part is not None
    )


def _products(weights: DecoderWeights) -> dict[str, list[Parts]]:
    """The matrices of all products by the names of weights_layout, and what is stacked in each, or in each expert's."""
    found: dict[str, list[Parts]] = {"head": [(weights.lm_head,)]}
    for index, layer in enumerate(weights.layers):
        found |= {f"{index}.{name}": [parts] for name, parts in merged_parts(layer).items()}
        if layer.experts is not None:
            found |= {f"{index}.{name}": stacks for name, stacks in expert_parts(layer.experts).items()}
    return found


def ordered_rows(values: WeightArray, order: IndexArray) -> WeightArray:
    """Rows of heads [heads * len(order), ...], those of each head in this order.

    A matrix that is stored quantised may be in the place of an array.
    """
    if np.array_equal(order, np.arange(len(order))):
        return values
    rows = (np.arange(len(values)).reshape(-1, len(order))[:, order]).reshape(-1)
    matrix = cast("WeightArray | StoredMatrix", values)
    return cast("WeightArray", matrix.ordered(rows) if isinstance(matrix, StoredMatrix) else matrix[rows])


def pack_stored(parts: Sequence[CodedMatrix], kind: StoredFormat) -> PackedLinear:
    """The stacked parts, all of this format."""
    rows = [
        (matrix, matrix.codes(first, min(first + CHUNK_ROWS, len(matrix))))
        for matrix in parts
        for first in range(0, len(matrix), CHUNK_ROWS)
    ]
    codes = torch.cat([_integers(matrix.layout, found, kind) for matrix, found in rows])
    scales = torch.cat([_groups(matrix, found, kind, "scales") for matrix, found in rows])
    least = (
        None if kind.minima == "none" else torch.cat([_groups(matrix, found, kind, "minima") for matrix, found in rows])
    )
    return _packed(codes, scales, least, kind)


@cache
def stored_shape(rows: int, columns: int, kind: StoredFormat) -> PackedLinear:
    """The result of `pack_stored` without values or memory."""
    dtype = torch.uint8 if kind.bits == 4 else torch.int8
    codes = torch.empty(rows, columns, dtype=dtype, device="meta")
    shape = (rows, -(-columns // kind.group)) if kind.group else (rows,)
    scales = torch.empty(shape, dtype=getattr(torch, kind.scales), device="meta")
    return _packed(codes, scales, None if kind.minima == "none" else torch.empty(shape, device="meta"), kind)


def _packed(codes: Tensor, scales: Tensor, least: Tensor | None, kind: StoredFormat) -> PackedLinear:
    if kind.bits == 8:
        return pack_bytes(codes, scales, kind.group)
    if kind.minima == "zeros" or least is None:
        return pack_w4(codes, scales, least, kind.group)
    return pack_w4(codes, scales, None, kind.group, least.to(getattr(torch, kind.minima)))


def _integers(layout: CodeLayout, rows: CodeRows, kind: StoredFormat) -> Tensor:
    if kind.bits == 4:
        return torch.from_numpy(np.ascontiguousarray(rows.codes))
    return torch.from_numpy((rows.codes.astype(np.int16) - layout.middle).astype(np.int8))


def _groups(matrix: CodedMatrix, rows: CodeRows, kind: StoredFormat, what: Literal["scales", "minima"]) -> Tensor:
    """Scales, zero points or minima [rows, K / group]: those of the file's larger groups are repeated."""
    layout, inputs = matrix.layout, matrix.shape[1]
    if what == "scales":
        values, dtype = group_values(rows.scales, layout.scales, rows.upper_scales), getattr(torch, kind.scales)
    else:
        assert rows.minima is not None
        values, dtype = group_values(rows.minima, layout.minima, rows.upper_minima), torch.float32
    if not kind.group:
        return torch.from_numpy(values[:, 0].copy())
    wide = np.repeat(values, max(1, layout.group // kind.group), axis=1)[:, : -(-inputs // kind.group)]
    return torch.from_numpy(np.ascontiguousarray(wide)).to(dtype)


def described_formats(checkpoint: Checkpoint, stored: StoredFormats, quantize: str = "none") -> str:
    """For the start report: which formats run as they are stored, which are widened, and what each takes."""
    plain, size_of_each = ("float32", 4) if quantize == FLOAT32 else ("bfloat16", 2)
    if not stored_matrices(checkpoint):
        return plain
    kept, wide = dict[str, int](), dict[str, int]()
    weights = outline_weights(checkpoint)
    beside: dict[str, list[Parts]] = {"embedding": [(weights.embedding,)]}
    for index, layer in enumerate(weights.layers):
        if layer.latent is not None:
            beside[f"{index}.up"] = [(layer.latent.up,)]
    for name, stacks in (_products(weights) | beside).items():
        kind: StoredFormat | str | None = stored.get(name)
        if quantize == FP8_BLOCK and name not in ("head", "embedding"):
            kind = FP8_BLOCK
        counts = wide if kind is None else kept
        for stack in stacks:
            parts = [part for part in stack if part is not None]
            rows = sum(len(part) for part in parts)
            for part in parts:
                if isinstance(part, StoredMatrix):
                    taken = _bytes_of(rows, part.shape[1], kind, size_of_each) * len(part) // rows
                    counts[part.format] = counts.get(part.format, 0) + taken
    return "; ".join(
        [
            *(f"{name} as stored ({size(count)})" for name, count in sorted(kept.items())),
            *(f"{name} widened to {plain} ({size(count)})" for name, count in sorted(wide.items())),
            f"other matrices in {plain}",
        ]
    )


def _bytes_of(rows: int, columns: int, kind: StoredFormat | str | None, wide: int) -> int:
    """What a whole matrix takes: rows are filled up to a multiple."""
    if not isinstance(kind, StoredFormat):
        return wide * rows * columns if kind is None else rows * columns + 4 * (rows // GROUP) * (columns // GROUP)
    return sum(tensor.nbytes for tensor in stored_shape(rows, columns, kind).tensors.values())
