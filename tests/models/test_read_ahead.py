"""All of the files is read, unless they could push each other out of memory; it ends with the load that it is for."""

import mmap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models import read_ahead
from triolet.models.pages import read_pages
from triolet.models.read_ahead import reading_ahead

PATIENCE = 60.0  # seconds: only a hang takes so long
ByteArray = npt.NDArray[np.uint8]


def wait_for_the_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "triolet-read-ahead":
            thread.join()


class Watched:
    """Takes the place of `read_pages`, and tells what was read: the first byte of each part, and its size."""

    def __init__(self, wanted: int, read: Callable[[ByteArray, int, int], bool] = read_pages) -> None:
        self.parts: list[tuple[int, int]] = []
        self.begun, self.done = threading.Event(), threading.Event()
        self._wanted, self._read = wanted, read

    def __call__(self, content: ByteArray, start: int, size: int) -> bool:
        could = self._read(content, start, size)
        self.parts.append((int(content[start]), size))
        self.begun.set()
        if len(self.parts) == self._wanted:
            self.done.set()
        return could


def test_the_files_are_read_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(4)
    monkeypatch.setattr(read_ahead, "read_pages", watched)
    monkeypatch.setattr(read_ahead, "CHUNK", 1 << 20)
    (tmp_path / "a").write_bytes(b"a" * ((2 << 20) + 5))
    (tmp_path / "b").write_bytes(b"b")
    with reading_ahead([tmp_path / name for name in "ab"], parts=1):
        assert watched.done.wait(PATIENCE)
    assert watched.parts == [(ord("a"), 1 << 20), (ord("a"), 1 << 20), (ord("a"), 5), (ord("b"), 1)]


def test_it_ends_with_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(0)
    monkeypatch.setattr(read_ahead, "read_pages", watched)
    monkeypatch.setattr(read_ahead, "CHUNK", mmap.PAGESIZE)
    monkeypatch.setattr(read_ahead, "available_memory", lambda: 1 << 40)
    pages = 1 << 22
    with (tmp_path / "a").open("wb") as file:
        file.truncate(pages * mmap.PAGESIZE)  # a hole
    with reading_ahead([tmp_path / "a"], parts=1):
        assert watched.begun.wait(PATIENCE)
    assert len(watched.parts) < pages
    assert "triolet-read-ahead" not in {thread.name for thread in threading.enumerate()}


def test_a_system_that_cannot_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(1, lambda content, start, size: False)
    monkeypatch.setattr(read_ahead, "read_pages", watched)
    monkeypatch.setattr(read_ahead, "CHUNK", mmap.PAGESIZE)
    (tmp_path / "a").write_bytes(b"a" * 5 * mmap.PAGESIZE)
    with reading_ahead([tmp_path / "a"], parts=1):
        assert watched.done.wait(PATIENCE)
        wait_for_the_thread()
    assert len(watched.parts) == 1


def test_files_larger_than_the_room_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = mmap.PAGESIZE
    (tmp_path / "a").write_bytes(b"x" * size)
    for room, parts in ((3 * size - 1, []), (3 * size, [(ord("x"), size)])):
        watched = Watched(1)
        monkeypatch.setattr(read_ahead, "read_pages", watched)
        monkeypatch.setattr(read_ahead, "available_memory", lambda room=room: room)
        with reading_ahead([tmp_path / "a"], parts=3):
            wait_for_the_thread()
        assert watched.parts == parts


@pytest.mark.parametrize("content", [None, b""], ids=["gone", "empty"])
def test_a_file_that_cannot_be_read_is_for_the_loader_to_tell(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with reading_ahead([tmp_path / "file"], parts=1):
        pass
