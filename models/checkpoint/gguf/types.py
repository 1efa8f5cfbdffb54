"""The types of tensors in a GGUF file: the number in the file, elements per block, bytes per block.

Types that are not read are listed too, so that an error can name them.
Source of numbers and sizes: `enum ggml_type` and `ggml-common.h` of https://github.com/ggml-org/ggml
"""

from __future__ import annotations

from typing import Final

# name: (number, elements per block, bytes per block)
_TABLE: Final[dict[str, tuple[int, int, int]]] = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "F64": (28, 1, 8),
    "I8": (24, 1, 1),
    "I16": (25, 1, 2),
    "I32": (26, 1, 4),
    "I64": (27, 1, 8),
    "Q4_0": (2, 32, 2 + 16),  # scale; 4 bits each
    "Q4_1": (3, 32, 2 + 2 + 16),  # scale, minimum
    "Q5_0": (6, 32, 2 + 4 + 16),  # scale; fifth bits; four bits each
    "Q5_1": (7, 32, 2 + 2 + 4 + 16),
    "Q8_0": (8, 32, 2 + 32),
    "Q8_1": (9, 32, 2 + 2 + 32),
    "Q2_K": (10, 256, 16 + 64 + 2 + 2),
    "Q3_K": (11, 256, 32 + 64 + 12 + 2),
    "Q4_K": (12, 256, 2 + 2 + 12 + 128),
    "Q5_K": (13, 256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": (14, 256, 128 + 64 + 16 + 2),
    "Q8_K": (15, 256, 4 + 256 + 32),
    "IQ2_XXS": (16, 256, 2 + 64),
    "IQ2_XS": (17, 256, 2 + 64 + 8),
    "IQ3_XXS": (18, 256, 2 + 96),
    "IQ1_S": (19, 256, 2 + 32 + 16),
    "IQ4_NL": (20, 32, 2 + 16),
    "IQ3_S": (21, 256, 2 + 64 + 8 + 32 + 4),
    "IQ2_S": (22, 256, 2 + 64 + 16),
    "IQ4_XS": (23, 256, 2 + 2 + 4 + 128),
    "IQ1_M": (29, 256, 32 + 16 + 8),
    "TQ1_0": (34, 256, 2 + 52),
    "TQ2_0": (35, 256, 2 + 64),
    "MXFP4": (39, 32, 1 + 16),
    "NVFP4": (40, 64, 4 + 32),
}
NUMBERS: Final[dict[str, int]] = {name: number for name, (number, _, _) in _TABLE.items()}
TYPES: Final[dict[int, str]] = {number: name for name, (number, _, _) in _TABLE.items()}
BLOCKS: Final[dict[str, tuple[int, int]]] = {name: (elements, size) for name, (_, elements, size) in _TABLE.items()}
