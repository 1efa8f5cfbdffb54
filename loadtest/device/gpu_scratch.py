"""Room for what a case writes: folders of the process that keeps the findings, which empties them behind a worker.

A case that is killed cannot clean up after itself, and sixteen gigabytes left in /dev/shm are memory that nobody has
any more. Imports no torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

IN_MEMORY = Path("/dev/shm")
VARIABLE = "TRIOLET_SUITE_SCRATCH"  # of a worker's environment: its folders


@contextmanager
def scratch_folders(prefix: str) -> Generator[list[Path]]:
    """One in memory, where there is such a place, and one among the temporary files; gone with the block."""
    places = [place for place in (IN_MEMORY, Path(tempfile.gettempdir())) if os.access(place, os.W_OK)]
    with ExitStack() as stack:
        made = [tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) for place in places]
        yield [Path(stack.enter_context(one)) for one in made]


def passed_on(folders: list[Path]) -> dict[str, str]:
    """For the environment of a worker."""
    return {VARIABLE: os.pathsep.join(map(str, folders))}


def given_folders() -> list[Path]:
    """In a worker: what it was passed. Elsewhere (a case run by itself): the places as they are."""
    given = os.environ.get(VARIABLE)
    return (
        [IN_MEMORY, Path(tempfile.gettempdir())] if given is None else [Path(name) for name in given.split(os.pathsep)]
    )


def empty(folders: list[Path]) -> None:
    """What is still in use by somebody goes when they end."""
    for folder in folders:
        for left in folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
