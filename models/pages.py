"""Pages of memory by the hundred megabytes: zeroed or of a file, huge where the system has such, taken when it suits.

A page that is first touched in a step costs that step a page fault. Untouched pages all share one page of zeros, which
flatters benchmarks. But touching the KV cache takes 0.1 s a gigabyte, and 2 s where a hypervisor lends memory at the
first touch: a start does not wait for it. The kernel can take pages without changing their content
(MADV_POPULATE_WRITE), so requests run meanwhile. Most pages are taken while no step runs.
"""

import ctypes
import mmap
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .low_priority import run_beside

_DONTNEED: Final = 4
_POPULATE_READ: Final = 22  # Linux 5.14; the mmap module has no name for these two
_POPULATE_WRITE: Final = 23
_HUGE: Final = 2 << 20
_QUIET: Final = 0.1  # seconds; a busy engine's steps follow each other sooner
_PAUSE: Final = 0.5  # seconds, while steps run
_TOUCHED_AT_ONCE: Final = 4 << 20  # below this a thread costs more than it saves
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


def populate(layers: ByteArray, idle_seconds: Callable[[], float]) -> None:
    """Take all pages of an unwritten cache [layers, bytes]: at once if it is small, otherwise while no step runs.

    `idle_seconds`: how long none has; another model's steps do not count. First come the pages of each layer's first
    blocks, as sequences take them. A step that is earlier takes those that it touches.
    """
    if layers.size < _TOUCHED_AT_ONCE or not _take(layers[0], 0, 1):
        layers.fill(0)
    else:
        run_beside(lambda: _take_all(layers, idle_seconds), "triolet-pages")


def _take_all(layers: ByteArray, idle_seconds: Callable[[], float]) -> None:
    """While steps run only 4 MB a second, so that all are taken some day: until then they count as free memory.

    Without a break, even at a low priority, it would cost prefill and decode up to a quarter of their speed: a kernel
    thread that loses its core for a while leaves its share of a stage unfinished, and the others wait for it.
    """
    size = layers.shape[1]
    for start in range(0, size, _HUGE):
        for layer in layers:
            if idle_seconds() < _QUIET:
                time.sleep(_PAUSE)
            _take(layer, start, min(_HUGE, size - start))


def _take(layer: ByteArray, start: int, size: int) -> bool:
    return _advise(layer, start, size, _POPULATE_WRITE)


def _advise(array: ByteArray, start: int, size: int, advice: int) -> bool:
    """Whether the kernel could follow it, for whole pages; called through ctypes, which releases the GIL."""
    address = array.ctypes.data + start
    before = address % mmap.PAGESIZE
    failed: int = ctypes.CDLL(None).madvise(ctypes.c_void_p(address - before), ctypes.c_size_t(before + size), advice)
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
