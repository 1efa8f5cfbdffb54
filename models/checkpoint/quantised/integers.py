"""Matrices of 4- and 8-bit integers in the packings of AWQ, GPTQ and compressed-tensors.

Sources: `pack_intweight` of https://github.com/casper-hansen/AutoAWQ, `QuantLinear.pack` of
https://github.com/AutoGPTQ/AutoGPTQ and https://github.com/ModelCloud/GPTQModel, `pack_to_int32` of
https://github.com/vllm-project/compressed-tensors
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....kernels.gemm.codes import CodeLayout, CodeRows, MinimumKind, ScaleKind, float_rows
from ...errors import CheckpointError
from ..stored import CodedMatrix, FloatArray, StoredMatrix

Words = npt.NDArray[np.int32]
Scales = npt.NDArray[Any]  # float16, uint16 with bfloat16 bits, or float32
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word, in the order of its columns
KINDS: dict[str, ScaleKind] = {"float16": "float16", "uint16": "bfloat16", "float32": "float32"}


def unpacked(words: npt.NDArray[np.int32], bits: int, order: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8]:
    """Each word's integers, lowest bits first or in `order`, in a new last axis."""
    places = np.array(range(32 // bits) if order is None else order, np.uint32) * np.uint32(bits)
    return ((words.view(np.uint32)[..., None] >> places) & np.uint32((1 << bits) - 1)).astype(np.uint8)


def _bits(scales: Scales) -> npt.NDArray[Any]:
    """Scales as CodeRows has them."""
    return scales.view(np.uint16) if scales.dtype == np.float16 else scales


class AwqMatrix(CodedMatrix):
    """qweight int32 [inputs, outputs / 8], qzeros int32 [groups, outputs / 8], scales float16 [groups, outputs]."""

    def __init__(self, qweight: Words, qzeros: Words, scales: Scales) -> None:
        self._words, self._zeros, self._scales = qweight, qzeros, scales
        self.shape = (int(scales.shape[1]), int(qweight.shape[0]))
        self.layout = CodeLayout(4, self.shape[1] // len(scales), KINDS[str(scales.dtype)], "zeros")
        self.format = "AWQ 4-bit"

    def codes(self, first: int, last: int) -> CodeRows:
        begin, end, skipped = first // 8, -(-last // 8), first % 8

        def columns(words: Words) -> npt.NDArray[np.uint8]:
            whole = unpacked(np.ascontiguousarray(words[:, begin:end]), 4, AWQ_NIBBLES).reshape(len(words), -1)
            return np.ascontiguousarray(whole[:, skipped : skipped + last - first].T)

        scales = np.ascontiguousarray(self._scales[:, first:last].T)
        return CodeRows(columns(self._words), _bits(scales), minima=columns(self._zeros))


class GptqMatrix(CodedMatrix):
    """qweight int32 [inputs / 8, outputs], qzeros int32 [groups, outputs / 8], scales [groups, outputs]; 8 bits: 4."""

    def __init__(self, bits: int, qweight: Words, qzeros: Words, scales: Scales, less: int) -> None:
        """`less`: what was taken from the zeros before they were packed, 1 in the first version of the format."""
        self._bits, self._words, self._scales = bits, qweight, scales
        self.shape = (int(scales.shape[1]), int(qweight.shape[0]) * 32 // bits)
        zeros = unpacked(qzeros, bits).reshape(len(qzeros), -1).astype(np.uint16) + np.uint16(less)
        if zeros.max(initial=0) > 255:
            raise CheckpointError("qzeros", int(zeros.max()), "a zero point beyond 8 bits: the file is damaged")
        # Zero points that are all the middle, as GPTQ's tools write by default, are none: so more kernels take them.
        self._zeros = None if (zeros[:, : self.shape[0]] == 1 << (bits - 1)).all() else zeros.astype(np.uint8)
        group = -(-self.shape[1] // len(scales))
        minima: MinimumKind = "none" if self._zeros is None else "zeros"
        self.layout = CodeLayout(4 if bits == 4 else 8, group, KINDS[str(scales.dtype)], minima)
        self.format = f"GPTQ {bits}-bit"

    def codes(self, first: int, last: int) -> CodeRows:
        words = np.ascontiguousarray(self._words[:, first:last].T)
        codes = unpacked(words, self._bits).reshape(last - first, -1)
        scales = np.ascontiguousarray(self._scales[:, first:last].T)
        zeros = None if self._zeros is None else np.ascontiguousarray(self._zeros[:, first:last].T)
        return CodeRows(codes, _bits(scales), minima=zeros)


class PackedMatrix(CodedMatrix):
    """weight_packed int32 [outputs, inputs / 8] of compressed-tensors, scales [outputs, groups]; 8 bits: 4 a word.

    Codes and zero points (int32 [outputs / 8, groups]) have half of the range added.
    """

    def __init__(self, bits: int, words: Words, scales: Scales, zeros: Words | None, shape: tuple[int, int]) -> None:
        self._bits, self._words, self._scales, self.shape = bits, words, scales, shape
        self._zeros = (
            None if zeros is None else unpacked(np.ascontiguousarray(zeros.T), bits).reshape(zeros.shape[1], -1)
        )
        group = -(-shape[1] // int(scales.shape[1]))
        kind, minima = KINDS[str(scales.dtype)], zeros is not None
        self.layout = CodeLayout(4 if bits == 4 else 8, group, kind, "zeros" if minima else "none")
        self.format = f"compressed-tensors {bits}-bit"

    def codes(self, first: int, last: int) -> CodeRows:
        codes = unpacked(self._words[first:last], self._bits).reshape(last - first, -1)[:, : self.shape[1]]
        zeros = None if self._zeros is None else np.ascontiguousarray(self._zeros[:, first:last].T)
        return CodeRows(np.ascontiguousarray(codes), _bits(self._scales[first:last]), minima=zeros)


class ByteMatrix(CodedMatrix):
    """int8 [outputs, inputs], scales [outputs, groups], zero points int8 like them."""

    def __init__(
        self, values: npt.NDArray[np.int8], scales: Scales, zeros: npt.NDArray[np.int8] | None, kind: str
    ) -> None:
        self._values, self._zeros, self.format = values, zeros, kind
        self.shape = (int(values.shape[0]), int(values.shape[1]))
        self._scales = np.broadcast_to(scales, (self.shape[0], scales.shape[1]))
        group = -(-self.shape[1] // int(scales.shape[1]))
        self.layout = CodeLayout(8, group, KINDS[str(scales.dtype)], "none" if zeros is None else "zeros")

    def codes(self, first: int, last: int) -> CodeRows:
        zeros = None if self._zeros is None else self._zeros[first:last].view(np.uint8) ^ np.uint8(128)
        codes = self._values[first:last].view(np.uint8) ^ np.uint8(128)
        return CodeRows(codes, _bits(np.ascontiguousarray(self._scales[first:last])), minima=zeros)


class ActOrderMatrix(StoredMatrix):
    """Codes whose inputs are not in the order of their groups: input i is of group `groups[i]` (GPTQ's act-order)."""

    def __init__(self, matrix: CodedMatrix, groups: npt.NDArray[np.int64]) -> None:
        self._matrix, self._groups = matrix, groups
        self.shape, self.format = matrix.shape, f"{matrix.format} with act-order"

    def rows(self, first: int, last: int) -> FloatArray:
        found, layout = self._matrix.codes(first, last), self._matrix.layout._replace(group=1)
        scales = np.ascontiguousarray(found.scales[:, self._groups])
        minima = None if found.minima is None else np.ascontiguousarray(found.minima[:, self._groups])
        return float_rows(layout, found._replace(scales=scales, minima=minima))
