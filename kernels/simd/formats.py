"""The formats of weights and of the KV cache, and their tag values in compiled code.

A tag is a numpy scalar that is passed along and never read: its type selects the variant by numba's specialisation. The
two 4-bit formats differ only in a run-time number (inputs that share a scale), so they share their code.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

WeightFormat = Literal["float32", "bfloat16", "int8", "int4", "int4-128", "stored"]
Tag = np.float32 | np.uint16 | np.uint8 | np.int8 | np.int16

TAGS: dict[WeightFormat, Tag] = {
    "float32": np.float32(0),
    "bfloat16": np.uint16(0),
    "int8": np.uint8(0),
    "int4": np.int8(0),
    "int4-128": np.int8(0),
    "stored": np.int16(0),
}
FORMAT_OF_TAG: dict[str, WeightFormat] = {
    "float32": "float32",
    "uint16": "bfloat16",
    "uint8": "int8",
    "int8": "int4",
    "int16": "stored",
}

WEIGHT_BITS: dict[WeightFormat, int] = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4, "int4-128": 4}
# stored: codes of 4, 6 or 8 bits as the checkpoint has them, by segments (gemm/segments.py)
GROUP = 32  # inputs that share a scale: of 4-bit weights, and always of their activations
GROUP_SHIFTS: dict[WeightFormat, int] = {"int4": 0, "int4-128": 2}  # 2 ** shift groups of weights share a scale

CacheFormat = Literal["float32", "bfloat16", "int8"]
CacheTag = np.float32 | np.uint16 | np.uint8 | np.int32 | np.uint32

CACHE_TAGS: dict[CacheFormat, CacheTag] = {"float32": np.float32(0), "bfloat16": np.uint16(0), "int8": np.uint8(0)}
# Of a cache of latent vectors (paged_attention/latent_tile.py), by the format of its numbers
LATENT_TAGS: dict[CacheFormat, CacheTag] = {"float32": np.int32(0), "bfloat16": np.uint32(0)}
LATENT = "latent_"
LATENT_OF_TAG = {"int32": LATENT + "float32", "uint32": LATENT + "bfloat16"}


def number_format_of(cache_format: str) -> str:
    """What the numbers of a cache are stored as."""
    return cache_format.removeprefix(LATENT)


def default_cache_format(weight_format: WeightFormat) -> CacheFormat:
    """Quantised weights keep a bfloat16 cache."""
    return "float32" if weight_format == "float32" else "bfloat16"
