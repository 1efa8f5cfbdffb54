"""What this process has allocated, in bytes. Other C libraries than glibc do not say it.

glibc gives each thread a heap of its own and reserves 64 MiB of addresses for it at a time. A limit of addresses counts
all of them, and the figures of one heap say nothing of another. So the compiler's process has one heap.
"""

import ctypes
from contextlib import suppress
from typing import Final

_M_ARENA_MAX: Final = -8  # of malloc.h


class _Mallinfo2(ctypes.Structure):
    """Of malloc.h (glibc 2.33)."""

    _fields_ = (
        ("arena, ordblks, smblks, hblks", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks, fsmblks", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("fordblks, keepcost", ctypes.c_size_t * 2),
    )
    hblkhd: int  # bytes of large blocks, which have their own pages
    uordblks: int  # bytes of the others


def allocate_from_one_heap() -> None:
    """Call it before there is another thread."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def allocated_bytes() -> int:
    """0 if the C library does not say it."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo2.restype = _Mallinfo2
    found: _Mallinfo2 = mallinfo2()
    return found.hblkhd + found.uordblks
