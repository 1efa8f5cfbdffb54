"""All of the files is read, unless they could push each other out of memory."""

import mmap
import os
from pathlib import Path

import pytest

from triolet.models import read_ahead
from triolet.models.read_ahead import read_ahead as begin


def test_the_files_are_read_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, sent = {"a": 3_000_000, "b": 1}, dict[str, int]()
    sendfile = os.sendfile

    def told(sink: int, file: int, position: int, count: int) -> int:
        done = sendfile(sink, file, position, min(count, 1 << 20))
        name = Path(os.readlink(f"/proc/self/fd/{file}")).name
        sent[name] = sent.get(name, 0) + done
        return done

    monkeypatch.setattr(os, "sendfile", told)
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    thread = begin(tmp_path / name for name in sizes)
    assert thread is not None
    thread.join()
    assert sent == sizes


def test_files_larger_than_the_room_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * mmap.PAGESIZE)
    monkeypatch.setattr(read_ahead, "available_memory", lambda: 3 * mmap.PAGESIZE - 1)
    assert begin([tmp_path / "a"]) is None
