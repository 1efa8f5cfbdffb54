"""Large zeroed memory. A separate thread takes its pages from the system once the owner is ready.

A page that is first touched in a step costs that step a page fault. Untouched pages all share one page of zeros, which
flatters benchmarks. But touching the KV cache takes 0.05 to 1 s, as long as the rest of a start. The kernel can take
pages without changing their content (MADV_POPULATE_WRITE), so the first requests run meanwhile.
"""

import ctypes
import mmap
import os
import sys
import threading
from typing import Final

import numpy as np
import numpy.typing as npt

_POPULATE_WRITE: Final = 23  # Linux 5.14; the mmap module has no name for it
_CHUNK: Final = 16 << 20  # a multiple of every page size
_TOUCHED_AT_ONCE: Final = 4 << 20  # below this a thread costs more than it saves

ByteArray = npt.NDArray[np.uint8]
CACHE_LINE = 64


def aligned_bytes(size: int) -> ByteArray:
    """Zeroed bytes from a cache line's start, with every page touched: untouched pages share one page of zeros."""
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    whole = raw[start : start + size]
    whole.fill(0)
    return whole


def zeroed_pages(size: int) -> ByteArray:
    """Zeros from a page's start; no page is taken yet."""
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


def populate(array: ByteArray) -> None:
    """Take all pages of an unwritten `zeroed_pages`: at once if it is small, otherwise while the cores are idle."""
    if array.size < _TOUCHED_AT_ONCE or not _take(array, 0, mmap.PAGESIZE):
        array.fill(0)
    else:
        threading.Thread(target=_take_all, args=(array,), name="triolet-pages", daemon=True).start()


def _take_all(array: ByteArray) -> None:
    """Run at idle priority, since it would slow steps down for seconds.

    Measured with 11 GB on two cores: at ordinary priority both prefill and decode ran at half speed meanwhile.
    """
    if sys.platform == "linux":
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    for start in range(0, array.size, _CHUNK):
        _take(array, start, min(_CHUNK, array.size - start))


def _take(array: ByteArray, start: int, size: int) -> bool:
    """Whether the kernel could take the pages; called through ctypes, which releases the GIL."""
    address = ctypes.c_void_p(array.ctypes.data + start)
    failed: int = ctypes.CDLL(None).madvise(address, ctypes.c_size_t(size), _POPULATE_WRITE)
    return not failed
