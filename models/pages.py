"""Pages of memory by the hundred megabytes: zeroed or of a file, huge where the system has such, taken when it suits.

A page that is first touched in a step costs that step a page fault. Untouched pages all share one page of zeros, which
flatters benchmarks. But touching the KV cache takes 0.05 to 1 s, as long as the rest of a start. The kernel can take
pages without changing their content (MADV_POPULATE_WRITE), so the first requests run meanwhile.
"""

import ctypes
import mmap
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .low_priority import run_beside

_DONTNEED: Final = 4
_POPULATE_READ: Final = 22  # Linux 5.14; the mmap module has no name for these two
_POPULATE_WRITE: Final = 23
_CHUNK: Final = 16 << 20  # a multiple of every page size
_TOUCHED_AT_ONCE: Final = 4 << 20  # below this a thread costs more than it saves
_HUGE: Final = 2 << 20
_SAMPLES: Final = 64  # huge pages that tell of all
_MOST: Final = 0.9

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
    return _array(mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]


def mapped_pages(file: int, size: int) -> ByteArray:
    """The first bytes of a file, to be read only. Raises OSError, and ValueError for an empty file."""
    return _array(mmap.mmap(file, size, prot=mmap.PROT_READ))


def has_huge_pages(mapped: ByteArray) -> bool:
    """Whether the system maps this file by huge pages. Reads a sample of the file.

    Linux does so if the file system's page cache holds them: XFS since 5.18, ext4 since 6.16.
    """
    spans = mapped.size // _HUGE
    sample = range(0, spans, -(-spans // _SAMPLES) or 1)
    for span in sample:
        read_pages(mapped, span * _HUGE, 1)
    return spans > 0 and _huge_bytes(mapped) >= _MOST * len(sample) * _HUGE


def read_pages(mapped: ByteArray, start: int, size: int) -> bool:
    """Have the system read this part of a file; False where it cannot. The start is a page's."""
    return _advise(mapped, start, size, _POPULATE_READ)


def release_pages(mapped: ByteArray, start: int, size: int) -> None:
    """Of a file: they stay in the page cache."""
    _advise(mapped, start, size, _DONTNEED)


def populate(array: ByteArray) -> None:
    """Take all pages of an unwritten `zeroed_pages`: at once if it is small, otherwise beside the steps."""
    if array.size < _TOUCHED_AT_ONCE or not _take(array, 0, mmap.PAGESIZE):
        array.fill(0)
    else:
        run_beside(lambda: _take_all(array), "triolet-pages")


def _take_all(array: ByteArray) -> None:
    """At a low priority: at an ordinary one prefill and decode ran at half speed meanwhile (11 GB on two cores)."""
    for start in range(0, array.size, _CHUNK):
        _take(array, start, min(_CHUNK, array.size - start))


def _take(array: ByteArray, start: int, size: int) -> bool:
    return _advise(array, start, size, _POPULATE_WRITE)


def _advise(array: ByteArray, start: int, size: int, advice: int) -> bool:
    """Whether the kernel could follow it; called through ctypes, which releases the GIL."""
    address = ctypes.c_void_p(array.ctypes.data + start)
    failed: int = ctypes.CDLL(None).madvise(address, ctypes.c_size_t(size), advice)
    return not failed


def _array(memory: mmap.mmap) -> ByteArray:
    if sys.platform == "linux":
        with suppress(OSError):  # a kernel that was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _huge_bytes(mapped: ByteArray) -> int:
    """How much of the mapping that begins here has huge pages now."""
    try:
        maps = Path("/proc/self/smaps").read_text()
    except OSError:  # another system, or a kernel that was built without it
        return 0
    _, _, after = maps.partition(f"\n{mapped.ctypes.data:08x}-")
    found = re.search(r"^FilePmdMapped: +(\d+) kB", after.partition("\nVmFlags")[0], re.MULTILINE)
    return int(found[1]) << 10 if found else 0
