"""Asks memory for what a kernel will read, before it waits for the kernel in front of it (`await_inputs`)."""

from __future__ import annotations

from typing import Any

from .language import INTERPRETED, jit, tl

_PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.b32 $0, 0;")


@jit
def prefetch(lines):
    """Into L2: the lines of 128 bytes that these pointers point into, which no kernel in front of this one writes."""
    tl.inline_asm_elementwise(_PREFETCH, "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1)


if INTERPRETED:  # there is nothing to ask
    import numpy as np

    from .interpreter import emulates

    Array = np.ndarray[Any, Any]  # Any: as the interpreter has it

    @emulates(_PREFETCH.value)
    def _nothing(lines: Array) -> Array:
        return np.zeros(lines.shape, np.int32)
