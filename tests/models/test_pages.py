"""Pages of the system: the KV cache gets all of its own, the checkpoint's are given back. Linux's own count decides."""

import ctypes
import json
import mmap
import os
import re
import struct
import sys
import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models import pages
from triolet.models.checkpoint.safetensors import SafetensorsFile
from triolet.models.low_priority import NICENESS
from triolet.models.pages import has_huge_pages, mapped_pages, populate, read_pages, release_pages, zeroed_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
MIB = 1 << 20


def idle_always() -> float:
    return inf


def resident(array: npt.NDArray[np.generic]) -> int:
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


def is_taken(layer: npt.NDArray[np.uint8], place: int) -> bool:
    return taken(layer[place - layer.ctypes.data % mmap.PAGESIZE :][:1]) == 1


def join_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "triolet-pages":
            thread.join()


@pytest.mark.parametrize("size", [1 * MIB, 40 * MIB], ids=["at once", "by a thread"])
def test_every_page_is_taken(size: int) -> None:
    array = zeroed_pages(size)
    assert taken(array) == 0
    populate(array.reshape(2, -1), idle_always)
    join_thread()
    assert taken(array) == size // mmap.PAGESIZE
    assert not array.any()


def test_steps_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is nice; who called it keeps its priority."""
    found: dict[str, int] = {}
    take = pages._take

    def noted(array: npt.NDArray[np.uint8], start: int, size: int) -> bool:
        found[threading.current_thread().name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return take(array, start, size)

    monkeypatch.setattr(pages, "_take", noted)
    populate(zeroed_pages(40 * MIB).reshape(2, -1), idle_always)
    join_thread()
    assert found == {threading.current_thread().name: os.getpriority(os.PRIO_PROCESS, 0), "triolet-pages": NICENESS}


def test_pages_are_taken_while_no_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """First of all layers' first blocks; a pause before each, while a step runs or has just ended."""
    array, waits = zeroed_pages(60 * MIB + 3 * 64), list[list[bool]]()
    layers = array.reshape(3, -1)
    assert layers[1].ctypes.data % mmap.PAGESIZE
    idle = iter([inf, -inf, 0.0, 0.09, 0.11])

    def wait(seconds: float) -> None:
        waits.append([is_taken(layer, MIB) for layer in layers] + [is_taken(layers[0], 10 * MIB)])

    monkeypatch.setattr("triolet.models.pages.time", SimpleNamespace(sleep=wait))
    populate(layers, lambda: next(idle, inf))
    join_thread()
    assert waits == [[True, False, False, False], [True, True, False, False], [True, True, True, False]]
    assert taken(array) == -(-array.size // mmap.PAGESIZE)


def test_what_is_written_meanwhile_is_kept() -> None:
    array = zeroed_pages(40 * MIB)
    array[::MIB] = 7
    populate(array.reshape(4, -1), idle_always)
    array[5::MIB] = 8
    join_thread()
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


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(np.random.default_rng(0).bytes(9 * MIB + 5))
    with (tmp_path / "file").open("rb") as opened:
        yield opened.fileno()


def test_a_part_of_a_file_is_read_and_let_go(file: int) -> None:
    mapped = mapped_pages(file, 9 * MIB + 5)
    for size, expected in ((9 * MIB + 5, 9 * MIB), (MIB, MIB)):
        assert read_pages(mapped, 0, size)
        assert resident(mapped) >= expected
        release_pages(mapped, 0, mapped.size)
        assert resident(mapped) == 0
    assert mapped.tobytes() == os.pread(file, mapped.size, 0)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_a_mapping_that_cannot_be_read_is_told(file: int) -> None:
    """A file that was cut short after it was mapped: touching it would end the process."""
    mapped = mapped_pages(file, 9 * MIB + 5)
    os.truncate(f"/proc/self/fd/{file}", 0)
    assert not read_pages(mapped, 0, MIB)


def test_huge_pages_are_seen_where_they_are(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is Linux's; the file system decides whether there are any."""
    mapped = mapped_pages(file, 9 * MIB + 5)
    assert has_huge_pages(mapped) == (pages._huge_bytes(mapped) == 8 * MIB)
    release_pages(mapped, 0, mapped.size)
    assert pages._huge_bytes(mapped) == 0
    assert not has_huge_pages(mapped_pages(file, MIB))
    monkeypatch.setattr(pages, "_huge_bytes", Mock(return_value=7 * MIB))
    assert not has_huge_pages(mapped)


def test_where_linux_does_not_tell_there_are_none(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError))
    assert not has_huge_pages(mapped_pages(file, 9 * MIB + 5))
