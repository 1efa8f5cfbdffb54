"""What an AArch64 CPU can do, as LLVM names it, asked of Linux.

LLVM's own list lacks the products of bytes (it reads a few names of /proc/cpuinfo), and is empty in an emulator, where
that file is the host's.
"""

from __future__ import annotations

import ctypes

_AT_HWCAP, _AT_HWCAP2 = 16, 26  # of getauxval(3)
# Bits of asm/hwcap.h
_IN_FIRST = {1: "neon", 8: "lse", 10: "fullfp16", 20: "dotprod"}
_IN_SECOND = {13: "i8mm", 14: "bf16"}


def added_features(listed: str) -> str:
    """LLVM's list of this CPU's features ("+neon,-sve2,…"), completed."""
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return completed(listed, ask(_AT_HWCAP), ask(_AT_HWCAP2))


def completed(listed: str, first: int, second: int) -> str:
    """The list with the features that the kernel's two words name."""
    words = ((first, _IN_FIRST), (second, _IN_SECOND))
    found = [name for word, names in words for bit, name in names.items() if word >> bit & 1]
    kept = [entry for entry in listed.split(",") if entry and entry[1:] not in found]
    return ",".join([*kept, *(f"+{name}" for name in found)])
