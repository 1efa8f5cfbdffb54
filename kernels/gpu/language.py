"""Triton as every kernel of ours sees it: `jit` and `tl`, on both versions that are supported (3.6 and 3.9).

Import these names from here and nowhere else, so that what must be set before Triton's first import is set. A process
either compiles for a GPU or interprets on the CPU; which one is decided once, before that import (`interpret_kernels`).
"""

import os

# Multiply-add fusion is wanted. Triton 3.9 warns where nobody says so, because 3.10 changes the default.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
if INTERPRETED:
    from .interpreter import correct_low_precision

    correct_low_precision()

jit = triton.jit
cdiv = triton.cdiv
next_power_of_2 = triton.next_power_of_2

__all__ = ["INTERPRETED", "cdiv", "jit", "next_power_of_2", "tl"]
