"""Blocks of 256 weights in 8 or 16 groups, whose scales are small integers times a float16: K-quants and IQ4_XS.

As in `blocks`: the bytes of some rows, [rows, blocks, bytes of a block], taken apart without loss.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....kernels.gemm.codes import CodeLayout, CodeRows
from .blocks import NONLINEAR, BlockType, Bytes, flat, joined, looked_up, scale, split, words


def _q2_k(blocks: Bytes) -> CodeRows:
    """Scales in the low and minima in the high half of a byte per 16 weights."""
    halves, codes = split(blocks[..., :16], 16, 4), split(blocks[..., 16:80], 32, 2)
    upper, upper_minima = scale(blocks[..., 80:82]), scale(blocks[..., 82:84])
    return CodeRows(flat(codes), flat(halves[..., :16]).view(np.int8), upper, flat(halves[..., 16:]), upper_minima)


def _q3_k(blocks: Bytes) -> CodeRows:
    """Two bits and a third; scales of six bits: the low four of eight bytes, the high two of four more."""
    codes = joined(split(blocks[..., 32:96], 32, 2), split(blocks[..., :32], 32, 1), 2)
    scales = joined(split(blocks[..., 96:104], 8, 4), split(blocks[..., 104:108], 4, 2), 4)
    return CodeRows(flat(codes), flat(scales).view(np.int8) - np.int8(32), scale(blocks[..., 108:]))


def _q4_k(blocks: Bytes) -> CodeRows:
    return _with_minima(blocks, split(blocks[..., 16:], 32, 4))


def _q5_k(blocks: Bytes) -> CodeRows:
    return _with_minima(blocks, joined(split(blocks[..., 48:], 32, 4), split(blocks[..., 16:48], 32, 1), 4))


def _with_minima(blocks: Bytes, codes: Bytes) -> CodeRows:
    """Bytes 0 to 3: the upper scale and minimum. 4 to 15: scales and minima of six bits.

    Those of groups 0 to 3 are the low six bits of the first four bytes (scales) and the next four (minima). Those of
    groups 4 to 7 have their low four bits in the two halves of the last four bytes, the others above the former.
    """
    six = np.bitwise_and(blocks[..., 4:12], np.uint8(63))
    low, high = split(blocks[..., 12:16], 4, 4), split(blocks[..., 4:12], 8, 2)[..., 24:]
    scales = np.concatenate([six[..., :4], joined(low[..., :4], high[..., :4], 4)], axis=-1)
    minima = np.concatenate([six[..., 4:], joined(low[..., 4:], high[..., 4:], 4)], axis=-1)
    upper, upper_minima = scale(blocks[..., :2]), scale(blocks[..., 2:4])
    return CodeRows(flat(codes), flat(scales).view(np.int8), upper, flat(minima), upper_minima)


def _q6_k(blocks: Bytes) -> CodeRows:
    codes = joined(split(blocks[..., :128], 64, 4), split(blocks[..., 128:192], 32, 2), 4)
    return CodeRows(flat(codes), flat(blocks[..., 192:208]).view(np.int8), scale(blocks[..., 208:]))


def _iq4_xs(blocks: Bytes) -> CodeRows:
    """Scales of six bits: two high ones each in a 16-bit number, four low ones in halves of bytes."""
    high = (words(blocks[..., 2:4]) >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = flat(joined(split(blocks[..., 4:8], 1, 4), high, 4)).view(np.int8) - np.int8(32)
    codes = looked_up(NONLINEAR, split(blocks[..., 8:], 16, 4))
    return CodeRows(flat(codes), scales, scale(blocks[..., :2]))


SUPERBLOCKS: Final[dict[str, BlockType]] = {
    "Q2_K": BlockType(CodeLayout(6, 16, "two-level", "two-level"), _q2_k),
    "Q3_K": BlockType(CodeLayout(6, 16, "two-level", zero=4), _q3_k),
    "Q4_K": BlockType(CodeLayout(4, 32, "two-level", "two-level"), _q4_k),
    "Q5_K": BlockType(CodeLayout(6, 32, "two-level", "two-level"), _q5_k),
    "Q6_K": BlockType(CodeLayout(6, 16, "two-level"), _q6_k),
    "IQ4_XS": BlockType(CodeLayout(8, 32, "two-level"), _iq4_xs),
}
