"""The folder of compiled kernels: one for each version of their sources, under the user's cache folder.

The files hold pickles and machine code: whoever writes them runs code in our process. So the folder must belong to this
process's user and nobody else may write to it, or replace a folder above it. Otherwise everything is compiled anew, in
a temporary folder, and the log says why.

Making a folder removes those that no process has used for long: older versions', and temporary ones, which only one
process ever uses. A process holds a lock on its folder as long as it lives.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_DAYS: Final = 30  # without a start that uses it; somebody may go back to an older version
_TEMPORARY: Final = "triolet-kernels-"
_TEMPORARY_DAYS: Final = 1

_LOG = logging.getLogger("triolet.kernels")
_held: list[int] = []  # descriptors with a lock, until the process ends


def open_cache_folder(name: str) -> Path:
    """The folder `name` of the user's cache, or a temporary one if that cannot be used."""
    known = private_folder(name, "it is not used, so this start compiles all CPU kernels again", older="kernels-*")
    if known is not None:
        return known
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    _make_and_hold(folder)
    _remove_unused(folder, f"{_TEMPORARY}*", _TEMPORARY_DAYS)
    return folder


def private_folder(name: str, otherwise: str, older: str | None = None) -> Path | None:
    """The folder `name` of the user's cache; None if it cannot be written, or if others may write to it.

    The log then says what happens `otherwise`. A new folder removes unused ones beside it that match `older`.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    ours = Path(base) / "triolet"
    folder = ours / name
    try:
        ours.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = not folder.exists()
        _make_and_hold(folder)
        if problem := _who_else_writes(folder.resolve()):
            _LOG.warning("%s; %s", problem, otherwise)
            return None
        with tempfile.TemporaryFile(dir=folder):
            if new and older is not None:
                _remove_unused(folder, older, KEPT_DAYS)
            return folder
    except OSError:  # read-only home
        return None


def _make_and_hold(folder: Path) -> None:
    """Make the folder if it is missing, lock it against removal, and set its time to now."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks: then nobody can remove it either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:  # else it was being removed
            break
        os.close(descriptor)
    _held.append(descriptor)
    with suppress(OSError):  # a folder in a read-only image
        os.utime(descriptor)


def _remove_unused(new: Path, pattern: str, days: int) -> None:
    """Remove our folders beside `new` that no start has used for so many days before it, and no process uses now."""
    oldest = new.stat().st_mtime - days * 24 * 3600
    for folder in new.parent.glob(pattern):
        with suppress(OSError):  # not ours to remove, or gone already
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and found.st_mtime < oldest:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def _who_else_writes(folder: Path) -> str | None:
    """Why the files in the compile cache may come from somebody else; None if they cannot."""
    own = (folder, folder.parent)  # those that `open_cache_folder` makes
    for place in (folder, *folder.parents):
        found = place.stat()
        if found.st_uid != os.geteuid() and (place in own or found.st_uid != 0):
            return f"the cache folder {place} belongs to another user: remove it"
        # Group members may write to a home folder in many places; in a sticky one (/tmp) they replace nothing of ours.
        others = found.st_mode & ((stat.S_IWGRP | stat.S_IWOTH) if place in own else stat.S_IWOTH)
        if others and (place in own or not found.st_mode & stat.S_ISVTX):
            return f"other users may write to {place}: remove the cache folder {folder}, then `chmod go-w {place}`"
    return None
