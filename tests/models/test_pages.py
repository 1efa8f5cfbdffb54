"""Pages of the system: the KV cache gets all of its own, the checkpoint's are given back. Linux's own count decides."""

import ctypes
import json
import mmap
import os
import re
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models.checkpoint.safetensors import SafetensorsFile
from triolet.models.cpu import pages as cpu_pages
from triolet.models.cpu.pages import populate, zeroed_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
MIB = 1 << 20


def resident(array: npt.NDArray[np.float32]) -> int:
    """Bytes in RAM of the mapping that holds the array's middle."""
    middle, found = array.ctypes.data + array.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(bounds[1], 16) <= middle < int(bounds[2], 16)
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


def taken(array: npt.NDArray[np.uint8]) -> int:
    """Pages of the array that are in RAM; it begins with a page."""
    pages = np.zeros(-(-array.size // mmap.PAGESIZE), np.uint8)
    address, length = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.size)
    assert ctypes.CDLL(None).mincore(address, length, ctypes.c_void_p(pages.ctypes.data)) == 0
    return int((pages & 1).sum())


@pytest.mark.parametrize("size", [1 * MIB, 40 * MIB], ids=["at once", "by a thread"])
def test_every_page_is_taken(size: int) -> None:
    array = zeroed_pages(size)
    assert taken(array) == 0
    populate(array)
    for thread in threading.enumerate():
        if thread.name == "triolet-pages":
            thread.join()
    assert taken(array) == size // mmap.PAGESIZE
    assert not array.any()


def test_steps_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has the policy of idle cores; who called it keeps its own."""
    found: dict[str, int] = {}
    take = cpu_pages._take

    def noted(array: npt.NDArray[np.uint8], start: int, size: int) -> bool:
        found[threading.current_thread().name] = os.sched_getscheduler(threading.get_native_id())
        return take(array, start, size)

    monkeypatch.setattr(cpu_pages, "_take", noted)
    populate(zeroed_pages(40 * MIB))
    for thread in threading.enumerate():
        if thread.name == "triolet-pages":
            thread.join()
    assert found == {threading.current_thread().name: os.sched_getscheduler(0), "triolet-pages": os.SCHED_IDLE}


def test_what_is_written_meanwhile_is_kept() -> None:
    array = zeroed_pages(40 * MIB)
    array[::MIB] = 7
    populate(array)
    array[5::MIB] = 8
    for thread in threading.enumerate():
        if thread.name == "triolet-pages":
            thread.join()
    assert (array[::MIB] == 7).all()
    assert (array[5::MIB] == 8).all()
    assert np.count_nonzero(array) == 80


def test_weights_that_were_read_leave_memory_and_come_back(tmp_path: Path) -> None:
    values = np.arange(2 * MIB, dtype=np.float32)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2 * MIB], "data_offsets": [0, values.nbytes]}}).encode()
    padded = header + b" " * (-len(header) % 8)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(padded)) + padded + values.tobytes())
    file = SafetensorsFile(tmp_path, "model.safetensors")
    weights = file.read("w")
    mapped = np.asarray(weights, np.float32)
    assert np.shares_memory(mapped, weights)
    np.testing.assert_array_equal(weights, values)
    assert resident(mapped) >= values.nbytes
    file.release_pages()
    assert resident(mapped) == 0
    np.testing.assert_array_equal(weights, values)
