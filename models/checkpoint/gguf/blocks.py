"""Blocks of 32 weights with a scale of their own, taken apart into codes and scales.

Each function takes the bytes of some rows, [rows, blocks, bytes of a block], and loses nothing: what comes back is
every bit of the block in another order. Layouts: `ggml-common.h` of https://github.com/ggml-org/ggml; MXFP4 is from the
OCP Microscaling Formats specification, version 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ....kernels.gemm.codes import FP4, CodeLayout, CodeRows

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
# Values of the "non-linear" 4-bit types by code, as unsigned numbers around 128.
NONLINEAR: Final = 128 + np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])

MXFP4_LAYOUT: Final = CodeLayout(6, 32, "bfloat16", fp4=True)


class BlockType(NamedTuple):
    """How blocks of one type are read."""

    layout: CodeLayout
    unpack: Callable[[Bytes], CodeRows]


def words(part: Bytes) -> Words:
    """Neighbouring pairs of bytes as 16-bit numbers."""
    return np.ascontiguousarray(part).view("<u2").astype(np.uint16, copy=False)


def scale(part: Bytes) -> Words:
    """One 16-bit number per block: [rows, blocks]."""
    return words(part)[..., 0]


def split(part: Bytes, width: int, bits: int) -> Bytes:
    """The parts of each byte, lowest bits first: in each run of `width` bytes, first all lowest parts, then the next.

    [rows, blocks, n] gives [rows, blocks, n * 8 / bits].
    """
    rows, blocks, count = part.shape
    runs = part.reshape(rows, blocks, count // width, width)
    parts = np.empty((rows, blocks, count // width, 8 // bits, width), np.uint8)
    for index in range(8 // bits):
        np.right_shift(runs, bits * index, out=parts[..., index, :])
        parts[..., index, :] &= (1 << bits) - 1
    return parts.reshape(rows, blocks, count * 8 // bits)


def joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """`high` above the `bits` bits of `low`."""
    return np.bitwise_or(low, np.left_shift(high, np.uint8(bits)))


def flat(codes: Bytes) -> Bytes:
    """[rows, inputs]: the blocks of a row side by side."""
    rows, blocks, count = codes.shape
    return codes.reshape(rows, blocks * count)


def looked_up(table: npt.NDArray[np.int64], nibbles: Bytes) -> Bytes:
    return table.astype(np.uint8)[nibbles]


def _q8_0(blocks: Bytes) -> CodeRows:
    return CodeRows(
        flat(np.bitwise_xor(blocks[..., 2:], np.uint8(0x80))), scale(blocks[..., :2])
    )  # from two's complement to around 128


def _q4_0(blocks: Bytes) -> CodeRows:
    return CodeRows(flat(split(blocks[..., 2:], 16, 4)), scale(blocks[..., :2]))


def _q4_1(blocks: Bytes) -> CodeRows:
    return CodeRows(
        flat(split(blocks[..., 4:], 16, 4)), scale(blocks[..., :2]), minima=_subtracted(scale(blocks[..., 2:4]))
    )


def _q5_0(blocks: Bytes) -> CodeRows:
    return CodeRows(_five_bits(blocks[..., 2:6], blocks[..., 6:]), scale(blocks[..., :2]))


def _q5_1(blocks: Bytes) -> CodeRows:
    minima = _subtracted(scale(blocks[..., 2:4]))
    return CodeRows(_five_bits(blocks[..., 4:8], blocks[..., 8:]), scale(blocks[..., :2]), minima=minima)


def _five_bits(high: Bytes, low: Bytes) -> Bytes:
    """Bit n of `high` is the fifth bit of weight n."""
    return flat(joined(split(low, 16, 4), np.unpackbits(high, axis=-1, bitorder="little"), 4))


def _subtracted(minima: Words) -> Words:
    """The file's minimum is added, that of a layout subtracted: the sign bit changes."""
    return np.bitwise_xor(minima, np.uint16(0x8000))


def _iq4_nl(blocks: Bytes) -> CodeRows:
    return CodeRows(flat(looked_up(NONLINEAR, split(blocks[..., 2:], 16, 4))), scale(blocks[..., :2]))


def _mxfp4(blocks: Bytes) -> CodeRows:
    return mxfp4_rows(flat(split(blocks[..., 1:], 16, 4)), blocks[..., 0])


def mxfp4_rows(nibbles: Bytes, exponents: Bytes) -> CodeRows:
    """From FP4 codes [rows, inputs] and E8M0 exponents [rows, inputs / 32].

    The scale is 2 ** (exponent - 128), half of the format's since values are doubled; 0 and 1 give subnormals.
    """
    wide = exponents.astype(np.uint16)
    scales = np.where(wide < 2, 0x20 << wide, (wide - 1) << 7)
    return CodeRows(FP4[nibbles], scales.astype(np.uint16))


SMALL_BLOCKS: Final[dict[str, BlockType]] = {
    "Q8_0": BlockType(CodeLayout(8, 32, "float16"), _q8_0),
    "Q4_0": BlockType(CodeLayout(4, 32, "float16"), _q4_0),
    "Q4_1": BlockType(CodeLayout(4, 32, "float16", "float16"), _q4_1),
    "Q5_0": BlockType(CodeLayout(6, 32, "float16", zero=16), _q5_0),
    "Q5_1": BlockType(CodeLayout(6, 32, "float16", "float16"), _q5_1),
    "IQ4_NL": BlockType(CodeLayout(8, 32, "float16"), _iq4_nl),
    "MXFP4": BlockType(MXFP4_LAYOUT, _mxfp4),
}
