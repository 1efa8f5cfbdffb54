"""Weights as small integers with scales: what checkpoints store, and what they stand for.

Inputs are grouped; a group of a row shares a scale, and a minimum or a zero point where the layout has one:

    weight = scale * (code - zero)         zero: half of the range, or one per group (minima "zeros")
    weight = scale * code - minimum        minima "float16" and "two-level"

Codes are unsigned, below 2 ** bits. Scales and minima of two levels, which GGUF's K-quants have, are a float16 per 256
inputs times a byte per group. All of it is kept as the file has it, in its own types: nothing here rounds. It knows
neither the files nor the kernels.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
SUPERBLOCK = 256  # inputs that share the upper level of two
# The numbers of FP4 (E2M1), doubled, around 32: by their 4 bits.
FP4: Final = (32 + np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])).astype(np.uint8)

ScaleKind = Literal["float16", "bfloat16", "float32", "two-level"]
MinimumKind = Literal["none", "zeros", "float16", "two-level"]


class CodeLayout(NamedTuple):
    """What the rows of one matrix have in common."""

    bits: Literal[4, 6, 8]  # of the unsigned codes; 2, 3 and 5 bits count as the next of these
    group: int  # inputs that share a scale: 16 (6 bits only), 32, or a multiple; the last group may be shorter
    scales: ScaleKind
    minima: MinimumKind = "none"
    zero: int | None = None  # None: half of the range, 2 ** (bits - 1); only where minima are "none"
    fp4: bool = False  # the codes of 6 bits are those of FP4, so that a kernel may keep them in 4

    @property
    def middle(self) -> int:
        """The code that stands for 0, where no minima say it."""
        return 1 << (self.bits - 1) if self.zero is None else self.zero


class CodeRows(NamedTuple):
    """Some rows. N rows, K inputs, G = ceil(K / group) groups, S = ceil(K / 256)."""

    codes: npt.NDArray[np.uint8]  # [N, K]
    scales: npt.NDArray[np.uint16 | np.float32 | np.int8]  # [N, G]: bits of a float16 or bfloat16; float32; int8
    upper_scales: npt.NDArray[np.uint16] | None = None  # [N, S] float16 bits, of two levels
    minima: npt.NDArray[np.uint16 | np.uint8] | None = None  # [N, G]: float16 bits; zeros; bytes of two levels
    upper_minima: npt.NDArray[np.uint16] | None = None  # [N, S] float16 bits, of two levels

    def picked(self, places: slice | npt.NDArray[np.int64]) -> CodeRows:
        """Some of these rows."""
        return CodeRows(
            self.codes[places],
            self.scales[places],
            None if self.upper_scales is None else self.upper_scales[places],
            None if self.minima is None else self.minima[places],
            None if self.upper_minima is None else self.upper_minima[places],
        )


def group_values(bits: npt.NDArray[np.generic], kind: str, upper: npt.NDArray[np.uint16] | None) -> FloatArray:
    """Scales or minima [N, G] as float32, exactly: a float16 times a byte has 19 bits."""
    match kind:
        case "float16":
            return bits.view(np.float16).astype(np.float32)
        case "bfloat16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        case "two-level":
            assert upper is not None
            groups = -(-bits.shape[1] // upper.shape[1])  # of one superblock
            spread = np.repeat(upper.view(np.float16).astype(np.float32), groups, axis=1)[:, : bits.shape[1]]
            return spread * bits.astype(np.float32)
        case _:
            return bits.astype(np.float32)


def float_rows(layout: CodeLayout, rows: CodeRows) -> FloatArray:
    """The weights [N, K], each rounded to float32 as the files' own libraries do."""
    inputs = rows.codes.shape[1]

    def spread(values: FloatArray) -> FloatArray:
        return np.repeat(values, layout.group, axis=1)[:, :inputs] if values.shape[1] > 1 else values

    scales = spread(group_values(rows.scales, layout.scales, rows.upper_scales))
    codes = rows.codes.astype(np.float32)
    if rows.minima is None:
        codes -= np.float32(layout.middle)
        return np.multiply(codes, scales, out=codes)
    minima = spread(group_values(rows.minima, layout.minima, rows.upper_minima))
    if layout.minima == "zeros":
        codes -= minima
        return np.multiply(codes, scales, out=codes)
    codes *= scales
    return np.subtract(codes, minima, out=codes)
