"""Files of a checkpoint folder: regular files only, nothing outside the folder, sizes bounded, JSON strict.

One layout may point elsewhere: Hugging Face's cache, where `snapshots/<revision>/<file>` links to `../../blobs/<hash>`,
and that, where repositories share files, to the `blobs` of the whole cache.
"""

import json
import os
import stat
from pathlib import Path
from typing import BinaryIO, NoReturn

from msgspec import convert

from ..errors import CheckpointError

POINTER = b"version https://git-lfs.github.com/spec/"


def folder_of(path: Path, what: str = "model", holds: str = "config.json") -> Path:
    """The folder of a checkpoint, or of something else with one file that tells it, resolved."""
    try:
        folder = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(what, str(path), f"there is no such folder ({error})") from None
    if not folder.is_dir():
        raise CheckpointError(what, str(path), f"expected a folder with {holds}")
    return folder


def find_file(folder: Path, name: str, *, inside: str = "") -> Path | None:
    """The regular file `name` of the folder, following links within bounds; None if there is none.

    `inside`: a folder in it that holds the file.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError("file", name, "expected a plain file name inside the checkpoint folder")
    path = folder / inside / name
    try:
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise CheckpointError("file", name, "the link leads nowhere; download the file again") from None
        return None
    except (OSError, RuntimeError) as error:
        raise CheckpointError("file", name, f"cannot be opened ({error})") from None
    allowed = [folder]
    if folder.parent.name == "snapshots":
        allowed += [folder.parent.parent / "blobs", folder.parent.parent.parent / "blobs"]
    if not any(target.is_relative_to(place) for place in allowed):
        raise CheckpointError("file", name, "links to a place outside the checkpoint folder")
    if not stat.S_ISREG(mode):
        raise CheckpointError("file", name, "is not a regular file")
    return target


def open_file(folder: Path, name: str, *, inside: str = "") -> BinaryIO:
    """Open `name` for reading. The opened file is checked again: it may have been replaced meanwhile."""
    path = find_file(folder, name, inside=inside)
    if path is None:
        raise CheckpointError("file", name, f"missing in {folder}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError("file", name, f"cannot be opened ({error.strerror})") from None
    file = open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise CheckpointError("file", name, "is not a regular file")
    if file.peek(len(POINTER)).startswith(POINTER):
        file.close()
        raise CheckpointError("file", name, "is a pointer of Git LFS, not the file itself: run `git lfs pull` there")
    return file


def read_bytes(folder: Path, name: str, max_bytes: int, *, inside: str = "") -> bytes:
    """The content of `name`."""
    with open_file(folder, name, inside=inside) as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise CheckpointError("file", name, f"is larger than {max_bytes} bytes")
    return text


def read_text(folder: Path, name: str, max_bytes: int, *, inside: str = "") -> str:
    """The content of `name`, which is UTF-8."""
    try:
        return read_bytes(folder, name, max_bytes, inside=inside).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError("file", name, f"is not UTF-8 ({error.reason})") from None


def read_json(folder: Path, name: str, max_bytes: int) -> dict[str, object]:
    """The JSON object in `name`."""
    return parse_object(read_bytes(folder, name, max_bytes), name)


def parse_object(text: bytes, name: str) -> dict[str, object]:
    """A JSON object in UTF-8 without duplicate keys. NaN and Infinity are refused: they are not JSON."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        return convert(found, dict[str, object])
    except (ValueError, RecursionError) as error:  # a ValidationError is a ValueError
        raise CheckpointError("file", name, f"is not a valid JSON object ({str(error)[:200]})") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"duplicate key among {sorted(key for key, _ in pairs)[:8]}")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
