"""Dynamic symmetric quantisation of activations: the definitions.

int8 has one scale per row. A few channels of real models are tens of times larger than the others, and the scale max
|x| / 127 would leave the others only a few integers. So if the maximum exceeds 12 times the mean of |x|, the scale is
12 / 127 of the mean (but at least max |x| / (64 * 127)). If it exceeds 48 times the mean, the mean is first computed
again without the values beyond 12 times the mean. Values beyond 127 times the scale become integers wider than a byte,
64 * high + low, which the GEMM multiplies exactly. If more than one quad (four consecutive values) in 8, or more than
256 quads, would be wide, the scale is the plain one.

int32 never overflows: the sum of |integers| of k values is below 127 k with a plain scale, and otherwise below
127 k + 256 * 4 * 64 * 127; weights are below 128 and k is at most 65536.

int4 has one scale per group of 32 values, so a wide channel affects only its group: the next power of two from max |x|
/ 127 up. (The error of x is then 0.6 %, and 0.4 % with max |x| / 127 itself; that of the weights is 8 %.)

Rows and groups of zeros stay zeros: the maximum counts as at least 1e-20. All rounding is to nearest even.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..simd.formats import GROUP
from .layout import MOST_WIDE_QUADS, QUADS_A_WIDE_ONE, WIDE_SHIFT

SMALLEST_MAXIMUM = 1e-20
WIDE_MEANS = 12  # values beyond this many times the mean are wide; normal values reach 6
FAR = 4  # maxima beyond this many times that bound distort the mean
WIDEST = 1 << WIDE_SHIFT


def quantise_reference(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int32], np.float32]:
    """Quantise one row to (integers, scale)."""
    size = np.abs(x)
    largest = np.float32(max(float(size.max()), SMALLEST_MAXIMUM))
    bound = _wide_bound(size)
    if largest > bound * np.float32(FAR):
        bound = _wide_bound(np.where(size <= bound, size, np.float32(0)))
    if bound < largest:
        bound = max(bound, largest * np.float32(1 / WIDEST))
    for limit in (min(bound, largest), largest):
        q = np.rint(x * (np.float32(127) / limit)).astype(np.int32)
        wide = (np.abs(q.reshape(-1, 4)) > 127).any(axis=1).sum()
        if wide <= min(len(x) // 4 // QUADS_A_WIDE_ONE, MOST_WIDE_QUADS):
            break
    return q, np.float32(limit / np.float32(127))


def _wide_bound(size: npt.NDArray[np.float32]) -> np.float32:
    """12 times the mean, summed in the kernel's order: 16 lanes, then pairs of lanes."""
    lanes = np.zeros(16, np.float32)
    for vector in size.reshape(-1, 16):
        lanes += vector
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0] * (np.float32(WIDE_MEANS) / np.float32(len(size))))


def quantise_groups_reference(
    x: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Quantise one row to (integers, scale of each group of 32)."""
    groups = x.reshape(-1, GROUP)
    largest = np.maximum(np.abs(groups).max(axis=1), np.float32(SMALLEST_MAXIMUM))
    bits = (largest * np.float32(1 / 127)).view(np.uint32)
    scales = ((bits + 0x7FFFFF) & 0x7F800000).astype(np.uint32).view(np.float32)
    return np.rint(groups / scales[:, None]).astype(np.int32).reshape(-1), scales
