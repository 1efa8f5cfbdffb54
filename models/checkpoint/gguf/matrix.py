"""A tensor of a GGUF file as a matrix or a vector, in the type that it has there."""

from __future__ import annotations

from typing import Final

import numpy as np

from ....kernels.gemm.codes import CodeRows
from ...errors import UnsupportedModel
from ..safetensors import WeightArray
from ..stored import CodedMatrix, Weight
from .blocks import SMALL_BLOCKS, BlockType
from .superblocks import SUPERBLOCKS
from .types import BLOCKS

QUANTISED: Final[dict[str, BlockType]] = {**SMALL_BLOCKS, **SUPERBLOCKS}
# Bits of a code in the file, where the layout has more: 2, 3 and 5 count as 6, and values of a table are written out.
FILE_BITS: Final = {
    "Q2_K": 2, "Q3_K": 3, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "IQ4_NL": 4, "IQ4_XS": 4, "MXFP4": 4,
}  # fmt: skip
PLAIN: Final = ("F32", "F16", "BF16")


class GgufMatrix(CodedMatrix):
    """A quantised matrix: a view of its file."""

    def __init__(self, kind: str, shape: tuple[int, int], data: memoryview) -> None:
        elements, size = BLOCKS[kind]
        self.shape = shape
        self.format = f"GGUF {kind}"
        self.file_bits = FILE_BITS.get(kind)
        self.layout, self._unpack = QUANTISED[kind]
        self._blocks = np.frombuffer(data, np.uint8).reshape(shape[0], shape[1] // elements, size)

    def codes(self, first: int, last: int) -> CodeRows:
        return self._unpack(self._blocks[first:last])


def read_weight(name: str, kind: str, shape: tuple[int, ...], data: memoryview) -> Weight:
    """What a tensor's bytes are: float32, uint16 holding bfloat16 bits, or for a matrix what is stored.

    float16 is widened, and so is a quantised vector. Raises UnsupportedModel for a type that is no weight's.
    """
    if kind in QUANTISED:
        matrix = GgufMatrix(kind, (int(np.prod(shape[:-1])), shape[-1]), data)
        return matrix if len(shape) == 2 else matrix.rows(0, len(matrix)).reshape(shape)
    return plain_weight(name, kind, data).reshape(shape)


def plain_weight(name: str, kind: str, data: memoryview) -> WeightArray:
    """float32, uint16 that holds bfloat16 bits, or float16 widened."""
    match kind:
        case "F32":
            return np.frombuffer(data, "<f4").view(np.float32)
        case "BF16":
            return np.frombuffer(data, "<u2").view(np.uint16)
        case "F16":
            return np.frombuffer(data, "<f2").astype(np.float32)
        case _:
            known = ", ".join((*PLAIN, *QUANTISED))
            raise UnsupportedModel(name, kind, f"this type is not supported; choose a file with {known}")
