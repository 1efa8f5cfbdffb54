"""Whether a cached file is what the hub has: its size, and its digest, once for each file.

The cache names a blob by the hub's ETag: the SHA-256 of a file in large storage, git's SHA-1 of any other. The hub's
library compares sizes alone. A file that was found good is remembered by its size and time of change.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..errors import LoadError

_AT_ONCE: Final = 1 << 22
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def checked_files() -> Path:
    """The folder that remembers: a file for each digest that was found right, with the state of the file it is of."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "triolet" / "checked-files"


class Damaged(LoadError):
    """A file of the cache is not the one that the hub has. It has been removed from the cache."""

    code = "invalid_checkpoint"


def check_files(folder: Path, sizes: Mapping[str, int], name: str, *, say: Callable[[str], object] = str) -> None:
    """Check these files of a snapshot, of so many bytes. Raises Damaged for the first that is not as it should be."""
    remember = checked_files()

    def check(file: str) -> str | None:
        return _problem(folder / file, sizes[file], remember)

    unknown = [file for file in sizes if not _is_known(folder / file, remember)]
    if (total := sum((folder / file).stat().st_size for file in unknown)) > 1 << 30:
        say(f"checking {total / 1e9:.1f} GB of {name} against the hub's digests, this once")
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # hashlib lets other threads run
        for file, problem in zip(sizes, threads.map(check, sizes), strict=True):
            if problem is not None:
                raise Damaged(f"{file} of {name} is damaged: {problem}. It was removed from the cache: try again")


def _problem(path: Path, size: int, remember: Path) -> str | None:
    found = path.stat().st_size
    if found != size:
        _remove(path)
        return f"it has {found:,} bytes, the hub says {size:,}"
    digest = _digest_of_name(path)
    if digest is None or _is_known(path, remember):
        return None
    computed = _digest(path, digest)
    if computed != digest:
        _remove(path)
        return f"its digest is {computed}, the hub says {digest}"
    with suppress(OSError):  # a read-only home: it is computed again at the next start
        remember.mkdir(mode=0o700, parents=True, exist_ok=True)
        (remember / digest).write_text(_state(path))
    return None


def _remove(path: Path) -> None:
    blob = path.parent / os.readlink(path) if path.is_symlink() else path
    blob.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _digest_of_name(path: Path) -> str | None:
    """None where the cache has no links: then sizes must do."""
    name = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    return name if _DIGEST.fullmatch(name) else None


def _is_known(path: Path, remember: Path) -> bool:
    digest = _digest_of_name(path)
    try:
        return digest is not None and (remember / digest).read_text() == _state(path)
    except OSError:
        return False


def _state(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _digest(path: Path, like: str) -> str:
    if len(like) == 40:
        content = path.read_bytes()  # git keeps small files
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while data := file.read(_AT_ONCE):
            digest.update(data)
    return digest.hexdigest()
