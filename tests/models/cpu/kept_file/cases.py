"""The fuzzer's target for kept weights: a file that is not as it was written is not used, and nothing is raised."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np

from triolet.models.cpu import kept
from triolet.protocol.steps import ignore_progress

THREADS = ThreadPoolExecutor(1)
SOURCE = np.arange(40, dtype=np.uint8)


def read_input(folder: Path, data: bytes) -> bool:
    """With chunks and a first page that are smaller than in use."""
    with patch.multiple(kept, CHUNK=16, HEADER_BYTES=128):
        file = kept.KeptWeights(folder, folder, "float32", "the model's")
        file.path.write_bytes(data)
        target = np.zeros_like(SOURCE)
        used = file.load(target, THREADS, ignore_progress)
    assert not used or np.array_equal(target, SOURCE), "its checksums are those of other bytes"
    return used
