"""The fuzzer's target for kept weights: a file that is not as it was written is not used, and nothing is raised."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np

from triolet.models.cpu import kept
from triolet.protocol.steps import ignore_progress

THREADS = ThreadPoolExecutor(1)
SOURCE = np.arange(41, dtype=np.uint8)


def read_input(folder: Path, data: bytes) -> bool:
    """Mapped and copied, with chunks and a last page that are smaller than in use."""
    used = {_used(folder, data, mapped) for mapped in (True, False)}
    assert len(used) == 1, "one way to read it takes what the other refuses"
    return used.pop()


def _used(folder: Path, data: bytes, mapped: bool) -> bool:
    huge, read = Mock(return_value=mapped), Mock(return_value=True)  # chunks are no pages here
    with patch.multiple(kept, CHUNK=16, HEADER_BYTES=128, has_huge_pages=huge, read_pages=read):
        file = kept.KeptWeights(folder, folder, "float32", "the model's")
        file.path.unlink(missing_ok=True)  # the one before may still be mapped
        file.path.write_bytes(data)
        weights = file.load(SOURCE.size, THREADS, ignore_progress)
    assert weights is None or np.array_equal(weights, SOURCE), "its checksums are those of other bytes"
    return weights is not None
