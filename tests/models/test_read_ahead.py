"""All of the files is read, unless they could push each other out of memory; it ends with the load that it is for."""

import mmap
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from triolet.models import read_ahead
from triolet.models.read_ahead import reading_ahead

PATIENCE = 60.0  # seconds: only a hang takes so long


class Watched:
    """Takes the place of `sendfile`: reads at most so many bytes in a call, and tells of every file."""

    def __init__(self, most: int, wanted: Mapping[str, int]) -> None:
        self.read: dict[str, int] = {}
        self.begun, self.done = threading.Event(), threading.Event()
        self._most, self._wanted, self._sendfile = most, wanted, os.sendfile

    def __call__(self, sink: int, file: int, position: int, count: int) -> int:
        sent = self._sendfile(sink, file, position, min(count, self._most))
        name = Path(os.readlink(f"/proc/self/fd/{file}")).name
        self.read[name] = self.read.get(name, 0) + sent
        self.begun.set()
        if self.read == self._wanted:
            self.done.set()
        return sent


def test_the_files_are_read_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a": 3_000_000, "b": 1}
    watched = Watched(1 << 20, sizes)
    monkeypatch.setattr(os, "sendfile", watched)
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    with reading_ahead(tmp_path / name for name in sizes):
        assert watched.done.wait(PATIENCE)
    assert watched.read == sizes


def test_it_ends_with_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(1, {})
    monkeypatch.setattr(os, "sendfile", watched)
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)  # in as many calls
    with reading_ahead([tmp_path / "a"]):
        assert watched.begun.wait(PATIENCE)
    assert watched.read["a"] < 3_000_000
    assert "triolet-read-ahead" not in {thread.name for thread in threading.enumerate()}


def test_files_larger_than_the_room_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = mmap.PAGESIZE
    (tmp_path / "a").write_bytes(b"x" * size)
    for room, read in ((3 * size - 1, {}), (3 * size, {"a": size})):
        watched = Watched(size, read)
        monkeypatch.setattr(os, "sendfile", watched)
        monkeypatch.setattr(read_ahead, "available_memory", lambda room=room: room)
        with reading_ahead([tmp_path / "a"]):
            assert not read or watched.done.wait(PATIENCE)
        assert watched.read == read


def test_a_file_that_is_gone_is_for_the_loader_to_tell(tmp_path: Path) -> None:
    with reading_ahead([tmp_path / "gone"]):
        pass
