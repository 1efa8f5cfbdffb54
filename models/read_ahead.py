"""Has the system read files into its page cache while the kernels and the tokenizer are still being loaded.

A start computes for a second before it needs the weights, and a disk reads gigabytes in that time. `sendfile` to a sink
does so in one call without the GIL, which `posix_fadvise` does not: it takes a few megabytes at a time, and between two
calls the imports keep the GIL for 5 ms. Nothing is copied; a file that is in the page cache takes 0.1 s of a core per
gigabyte or two.
"""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .host import available_memory


def read_ahead(files: Iterable[Path]) -> threading.Thread | None:
    """Begin to read them, in order. Not if their pages could push each other out of memory before they are used."""
    paths = list(files)
    if sum(path.stat().st_size for path in paths) > available_memory() // 3:  # they, what is packed of them, the rest
        return None
    thread = threading.Thread(target=_read, args=(paths,), name="triolet-read-ahead", daemon=True)
    thread.start()
    return thread


def _read(paths: list[Path]) -> None:
    with suppress(OSError), open(os.devnull, "wb") as sink:  # whoever needs the file says what is wrong with it
        for path in paths:
            with path.open("rb") as file:
                position = 0
                while count := os.sendfile(sink.fileno(), file.fileno(), position, 1 << 30):
                    position += count
