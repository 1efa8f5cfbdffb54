"""The three weight formats and the tag values that stand for them in compiled code.

A tag is a numpy scalar that is passed along and never read: its type selects the variant, as any numba specialisation.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

WeightFormat = Literal["float32", "bfloat16", "int8"]
Tag = np.float32 | np.uint16 | np.uint8

TAGS: dict[WeightFormat, Tag] = {"float32": np.float32(0), "bfloat16": np.uint16(0), "int8": np.uint8(0)}
FORMAT_OF_TAG: dict[str, WeightFormat] = {"float32": "float32", "uint16": "bfloat16", "uint8": "int8"}

WEIGHT_BYTES: dict[WeightFormat, int] = {"float32": 4, "bfloat16": 2, "int8": 1}
CACHE_BYTES: dict[WeightFormat, int] = {"float32": 4, "bfloat16": 2, "int8": 2}  # int8 weights keep a bfloat16 cache
