"""Matrices of 8-bit floats with scales, and of bitsandbytes' NF4 and FP4: numbers that no integers are.

Sources: OCP 8-bit Floating Point Specification (E4M3), `weight_scale_inv` of DeepSeek-V3's checkpoints,
`QuantState` of https://github.com/bitsandbytes-foundation/bitsandbytes
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..stored import FloatArray, StoredMatrix


def _e4m3() -> FloatArray:
    """The value of each byte: a sign, 4 bits of exponent with the bias 7, 3 of mantissa; no infinities, two NaN."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values = np.where(byte & 128, -size, size)
    values[(byte & 127) == 127] = np.nan
    return values.astype(np.float32)


E4M3 = _e4m3()


class Fp8Matrix(StoredMatrix):
    """E4M3 bytes [outputs, inputs] times float32 scales of blocks: [outputs / height, inputs / width]."""

    def __init__(self, values: npt.NDArray[np.uint8], scales: FloatArray, block: tuple[int, int]) -> None:
        self.values, self.scales, self.block = values, scales, block
        self.shape = (int(values.shape[0]), int(values.shape[1]))
        self.format = "FP8"

    def rows(self, first: int, last: int) -> FloatArray:
        height, width = self.block
        scales = self.scales[np.arange(first, last) // height]
        wide: FloatArray = E4M3[self.values[first:last]]
        wide *= np.repeat(scales, width, axis=1)[:, : self.shape[1]] if scales.shape[1] > 1 else scales
        return wide


class CodebookMatrix(StoredMatrix):
    """4-bit numbers of a table, the higher half of a byte first, times a scale for each block of neighbours.

    Blocks run through the rows: values are [outputs * inputs / 2] bytes, scales [outputs * inputs / block].
    """

    def __init__(
        self, values: npt.NDArray[np.uint8], table: FloatArray, scales: FloatArray, block: int, shape: tuple[int, int]
    ) -> None:
        self._values, self._table, self._scales, self._block = values, table, scales, block
        self.shape, self.format = shape, "bitsandbytes 4-bit"

    def rows(self, first: int, last: int) -> FloatArray:
        inputs = self.shape[1]
        begin, end = first * inputs, last * inputs
        packed = self._values[begin // 2 : -(-end // 2)]
        codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)[begin % 2 :][: end - begin]
        scales = self._scales[np.arange(begin, end) // self._block]
        values: FloatArray = (self._table[codes] * scales).reshape(last - first, inputs)
        return values
