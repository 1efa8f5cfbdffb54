"""Tables of the rotary embedding: cos and sin for every position, computed in float64, stored in float32.

The "rotate half" convention of Hugging Face's Llama: dimensions j and j + head_dim / 2 of a head form pair j, and
    q'[j] = q[j] cos - q[j + half] sin,    q'[j + half] = q[j + half] cos + q[j] sin.
"""

from math import ceil, floor, log, pi

import numpy as np
import numpy.typing as npt

from .checkpoint.rope_spec import RopeSpec
from .checkpoint.spec import ModelSpec

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


def rope_tables(spec: ModelSpec, length: int) -> Float32Array:
    """[length, head_dim]: cos of every pair in the first half, sin in the second, YaRN's magnitude folded in."""
    frequencies = inverse_frequencies(spec.rope, spec.head_dim)
    half = spec.head_dim // 2
    table = np.empty((length, spec.head_dim), dtype=np.float32)
    for start in range(0, length, 4096):  # bounds the float64 scratch for million-token contexts
        angles = np.arange(start, min(start + 4096, length), dtype=np.float64)[:, None] * frequencies
        table[start : start + 4096, :half] = np.cos(angles) * spec.rope.attention_factor
        table[start : start + 4096, half:] = np.sin(angles) * spec.rope.attention_factor
    return table


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Float64Array:
    """[head_dim / 2]: the angle per position of each pair, theta^(-2j / head_dim) (arXiv 2104.09864), then scaled."""
    base: Float64Array = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    match rope.kind:
        case "default":
            return base
        case "linear":
            return base / rope.factor  # position interpolation, arXiv 2306.15595
        case "llama3":
            return _llama3(rope, base)
        case "yarn":
            return _yarn(rope, base, head_dim)


def _llama3(rope: RopeSpec, base: Float64Array) -> Float64Array:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, a linear blend (in turns) between.

    Source: `apply_scaling` of Meta's llama-models repository; a wavelength fits `turns` times into the original length.
    """
    turns = rope.original_max_position * base / (2 * pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return base * (keep + (1.0 - keep) / rope.factor)


def _yarn(rope: RopeSpec, base: Float64Array, head_dim: int) -> Float64Array:
    """YaRN "NTK by parts" (arXiv 2309.00071, section 3.2), with the ramp over dimensions of the authors' code.

    Pairs turning more than `beta_fast` times within the original length are kept, fewer than `beta_slow` interpolated.
    """

    def dimension(turns: float) -> float:
        return head_dim * log(rope.original_max_position / (turns * 2 * pi)) / (2 * log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as the authors: a step instead of a division by zero
    interpolate = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    scaled: Float64Array = base * (1.0 - interpolate + interpolate / rope.factor)
    return scaled
