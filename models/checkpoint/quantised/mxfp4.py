"""Experts in MXFP4, as gpt-oss is stored: blocks of 32 FP4 numbers (E2M1) that share a power of two (E8M0).

    experts.gate_up_proj_blocks uint8 [experts, 2 width, blocks, 16], of each byte the lower half first, and
    experts.gate_up_proj_scales uint8 [experts, 2 width, blocks], gates and ups in turn; experts.down_proj_… alike

Source: OCP Microscaling Formats specification, version 1.0. bfloat16 holds every number exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ....kernels.gemm.codes import CodeRows
from ...errors import CheckpointError, UnsupportedModel
from ..experts import MAX_PIECES
from ..gguf.blocks import MXFP4_LAYOUT, mxfp4_rows
from ..stored import CodedMatrix, StoredMatrix

Bytes = npt.NDArray[np.uint8]
BLOCKS, SCALES = "_blocks", "_scales"
PARTS = {
    "gate_up_proj": {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)},
    "down_proj": {"down_proj": slice(None)},
}
LARGEST = 252  # exponent whose numbers, up to 6 * 2 ** (252 - 127), are finite in float32; 255 is NaN


class RawTensors(Protocol):
    """What is in the files."""

    def names(self) -> Iterable[str]: ...

    def raw(self, name: str) -> npt.NDArray[Any]:
        """The tensor in its own type."""
        ...


class Mxfp4Matrix(CodedMatrix):
    """blocks [outputs, blocks, 16], exponents [outputs, blocks]."""

    def __init__(self, name: str, blocks: Bytes, exponents: Bytes) -> None:
        self._name, self._blocks, self._exponents = name, blocks, exponents
        self.shape = (len(blocks), blocks.shape[1] * MXFP4_LAYOUT.group)
        self.format, self.layout, self.file_bits = "MXFP4", MXFP4_LAYOUT, 4

    def codes(self, first: int, last: int) -> CodeRows:
        exponents = self._exponents[first:last]
        if (largest := int(exponents.max(initial=0))) > LARGEST:
            raise CheckpointError(self._name, largest, f"an exponent above {LARGEST}: the file is damaged")
        blocks = self._blocks[first:last]
        nibbles = np.stack([blocks & np.uint8(15), blocks >> np.uint8(4)], axis=-1).reshape(len(blocks), -1)
        return mxfp4_rows(nibbles, exponents)


def read_mxfp4(tensors: RawTensors) -> tuple[dict[str, StoredMatrix], frozenset[str]]:
    """The matrices of every expert by their own names, and the tensors that they are made of."""
    names = set(tensors.names())
    matrices, taken = dict[str, StoredMatrix](), set[str]()
    for name in sorted(names):
        if not name.endswith(BLOCKS):
            continue
        whole = name.removesuffix(BLOCKS)
        start, _, projection = whole.rpartition(".")
        if projection not in PARTS:
            raise UnsupportedModel(name, projection, f"in MXFP4, these are read: {', '.join(PARTS)}")
        if whole + SCALES not in names:
            raise CheckpointError(whole + SCALES, None, "missing beside the blocks of this quantised tensor")
        blocks, exponents = tensors.raw(name), tensors.raw(whole + SCALES)
        parts = PARTS[projection]
        for array, sizes in ((blocks, 4), (exponents, 3)):
            if array.dtype != np.uint8 or array.ndim != sizes or array.size == 0 or array.shape[1] % len(parts):
                raise CheckpointError(name, array.shape, "expected bytes [experts, outputs, blocks, 16], and scales")
        if blocks.shape != (*exponents.shape, MXFP4_LAYOUT.group // 2):
            raise CheckpointError(name, blocks.shape, f"does not fit the scales {exponents.shape}")
        if len(blocks) + len(matrices) > MAX_PIECES:
            raise CheckpointError(name, len(blocks), f"experts; at most {MAX_PIECES} matrices are read")
        taken |= {name, whole + SCALES}
        for expert in range(len(blocks)):
            for part, rows in parts.items():
                matrix = Mxfp4Matrix(whole + SCALES, blocks[expert, rows], exponents[expert, rows])
                matrices[f"{start}.{expert}.{part}.weight"] = matrix
    return matrices, frozenset(taken)
