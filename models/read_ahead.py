"""Has the system read files into its page cache while the kernels and the tokenizer are still being loaded.

A start computes for a second before it needs the weights, and a disk reads gigabytes in that time. The system reads a
mapping of each file, without the GIL. (`posix_fadvise` takes a few megabytes at a time, and between two calls the
imports keep the GIL for 5 ms.) Nothing is copied, and whoever maps the file later finds huge pages, where the file
system has them. A kernel that cannot read so (before Linux 5.14) reads nothing ahead.
"""

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .host import available_memory
from .pages import mapped_pages, read_pages, release_pages

CHUNK: Final = 64 << 20  # bytes: a refused load waits for so much at most


@contextmanager
def reading_ahead(files: Iterable[Path], parts: int) -> Generator[None]:
    """Read them, in order, while this is open. Not if their pages could push each other out of memory before use.

    parts: of the free memory; the files may take one of them.
    """
    stopped = threading.Event()
    thread = threading.Thread(target=_read, args=(list(files), parts, stopped), name="triolet-read-ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _read(paths: list[Path], parts: int, stopped: threading.Event) -> None:
    with suppress(OSError, ValueError):  # an empty file; whoever needs the file says what is wrong with it
        if sum(path.stat().st_size for path in paths) > available_memory() // parts:
            return
        for path in paths:
            with path.open("rb") as file:
                content = mapped_pages(file.fileno(), path.stat().st_size)
            for start in range(0, content.size, CHUNK):
                size = min(CHUNK, content.size - start)
                if stopped.is_set() or not read_pages(content, start, size):
                    return
                release_pages(content, start, size)
