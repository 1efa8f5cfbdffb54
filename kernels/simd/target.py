"""The instructions that the compiler may use, according to numba's target.

If LLVM is asked for an instruction that the target lacks, it ends the process ("LLVM ERROR", SIGABRT) without an
exception. So every choice is made from this set before code is built. The set honours NUMBA_CPU_NAME and
NUMBA_CPU_FEATURES; tests use these to run the fallbacks on a newer CPU. "neon" stands for AArch64, which has it always.
"""

from __future__ import annotations

import functools
import platform
from typing import Any

from .arm_features import added_features


def on_arm() -> bool:
    """Whether this process runs on AArch64. The other machine is x86-64."""
    return platform.machine() == "aarch64"


def complete_target() -> None:
    """Have numba compile for all that an Arm CPU can do. Before it compiles anything; idempotent."""
    from numba.core import codegen, config

    settings: Any = config  # Any: numba declares its settings at run time only
    if on_arm() and settings.CPU_FEATURES is None:
        settings.CPU_FEATURES = added_features(str(codegen.get_host_cpu_features()))


@functools.cache
def features() -> frozenset[str]:
    """Names of the CPU features that numba compiles for, such as "avx2" or "avx512vnni"."""
    from numba.core.registry import cpu_target

    complete_target()
    context: Any = cpu_target.target_context  # Any: numba is untyped
    listed = str(context.codegen()._tm_features)
    always = frozenset({"neon"}) if on_arm() else frozenset[str]()
    return always.union(entry[1:] for entry in listed.split(",") if entry.startswith("+"))


def has(*names: str) -> bool:
    """Whether all the named features are available."""
    return features().issuperset(names)


def wide_registers() -> bool:
    """Whether there are 32 registers of 512 bits; otherwise one 16-lane vector takes two of 16 registers."""
    return has("avx512f", "avx512bw", "avx512vl")
