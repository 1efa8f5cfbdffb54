"""Random matrices of codes in memory, one for each layout that checkpoints have. Imports no torch."""

from __future__ import annotations

import numpy as np

from triolet.kernels.gemm.codes import FP4, CodeLayout, CodeRows
from triolet.models.checkpoint.stored import CodedMatrix


class Held(CodedMatrix):
    """A matrix whose rows are in memory."""

    def __init__(self, layout: CodeLayout, held: CodeRows) -> None:
        self.layout, self._held, self.format = layout, held, "held"
        self.shape = (int(held.codes.shape[0]), int(held.codes.shape[1]))

    def codes(self, first: int, last: int) -> CodeRows:
        return self._held.picked(slice(first, last))


LAYOUTS = {
    "Q8_0": CodeLayout(8, 32, "float16"),
    "Q4_0": CodeLayout(4, 32, "float16"),
    "Q4_1": CodeLayout(4, 32, "float16", "float16"),
    "Q4_K": CodeLayout(4, 32, "two-level", "two-level"),
    "Q6_K": CodeLayout(6, 16, "two-level"),
    "AWQ": CodeLayout(4, 128, "float16", "zeros"),
    "compressed-tensors": CodeLayout(4, 128, "bfloat16"),
    "MXFP4": CodeLayout(6, 32, "bfloat16", fp4=True),
    "W8A8": CodeLayout(8, 512, "float32"),
}


def held(layout: CodeLayout, rows: int = 9, inputs: int = 512, seed: int = 0, size: float = 1.0) -> Held:
    """Scales and minima are up to a tenth of `size`; of two levels, the upper ones are."""
    rng = np.random.default_rng(seed)
    groups, uppers = -(-inputs // layout.group), inputs // 256

    def floats(*shape: int) -> np.ndarray:
        return (rng.uniform(0.001, 0.1, shape) * size).astype(np.float32)

    def halves(*shape: int) -> np.ndarray:
        return floats(*shape).astype(np.float16).view(np.uint16)

    scales = {
        "float16": halves(rows, groups),
        "bfloat16": (floats(rows, groups).view(np.uint32) >> 16).astype(np.uint16),
        "float32": floats(rows, groups),
        "two-level": rng.integers(-32 if layout.group == 16 else 0, 63, (rows, groups)).astype(np.int8),
    }[layout.scales]
    minima = {
        "none": None,
        "zeros": rng.integers(0, 16, (rows, groups)).astype(np.uint8),
        "float16": halves(rows, groups),
        "two-level": rng.integers(0, 63, (rows, groups)).astype(np.uint8),
    }[layout.minima]
    codes = rng.integers(0, 16 if layout.fp4 else 1 << layout.bits, (rows, inputs)).astype(np.uint8)
    codes = FP4[codes] if layout.fp4 else codes
    two = halves(rows, uppers) if layout.scales == "two-level" else None
    return Held(
        layout, CodeRows(codes, scales, two, minima, halves(rows, uppers) if layout.minima == "two-level" else None)
    )
