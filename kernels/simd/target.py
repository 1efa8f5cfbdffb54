"""The instructions that the compiler may use, according to numba's target.

If LLVM is asked for an instruction that the target lacks, it ends the process ("LLVM ERROR", SIGABRT) without an
exception. So every choice is made from this set before code is built. The set honours NUMBA_CPU_NAME and
NUMBA_CPU_FEATURES; tests use these to run the fallbacks on a newer CPU.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def features() -> frozenset[str]:
    """Names of the CPU features that numba compiles for, such as "avx2" or "avx512vnni"."""
    from numba.core.registry import cpu_target

    context: Any = cpu_target.target_context  # Any: numba is untyped
    listed = str(context.codegen()._tm_features)
    return frozenset(entry[1:] for entry in listed.split(",") if entry.startswith("+"))


def has(*names: str) -> bool:
    """Whether all the named features are available."""
    return features().issuperset(names)


def wide_registers() -> bool:
    """Whether there are 32 registers of 512 bits; otherwise one 16-lane vector takes two of 16 registers."""
    return has("avx512f", "avx512bw", "avx512vl")
