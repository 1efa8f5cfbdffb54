"""Weights on their way to a device, through two pinned buffers in turn: one is filled while the other is copied.

A copy from memory that is not pinned goes through small buffers of the driver, and the caller waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import torch

from ..checkpoint.stored import StoredMatrix, Weight, float_parts
from .device import Device

# Of each buffer. PCIe Gen5 takes 1.3 ms for so much, a hundred times as long as it takes to enqueue the copy.
STAGED_BYTES: Final = 64 << 20
# One thread copies 10 to 16 GB/s out of the page cache; PCIe Gen5 takes 50.
COPY_THREADS: Final = 4

ByteArray = npt.NDArray[np.uint8]
# What the arrays of a checkpoint hold.
_HELD = {np.dtype(np.uint16): torch.bfloat16, np.dtype(np.float32): torch.float32, np.dtype(np.uint8): torch.uint8}


class Staging:
    """Fills tensors of a device, in the order of its stream. Entered while it is used, by one thread."""

    def __init__(self, device: Device, size: int = STAGED_BYTES) -> None:
        self.device, self._size = device, size
        self._pinned = [device.pinned(size) for _ in range(2)]
        self._bytes: list[ByteArray] = [buffer.numpy() for buffer in self._pinned]
        self._copied = [device.record() for _ in range(2)]  # what each buffer held is on the device
        self._now = self._used = 0
        self._threads = ThreadPoolExecutor(COPY_THREADS, "triolet-staging")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def put(self, target: torch.Tensor, source: Weight | ByteArray | torch.Tensor) -> None:
        """Enqueue a copy in the target's type. The source is read before this returns."""
        device_bytes, host, start = target.view(-1).view(torch.uint8), _bytes_of(source, target.dtype), 0
        assert len(host) == len(device_bytes), f"{len(host)} bytes for {list(target.shape)} of {target.dtype}"
        while start < len(host):
            if self._used == self._size:
                self._turn()
            size = min(len(host) - start, self._size - self._used)
            part, staged = slice(start, start + size), slice(self._used, self._used + size)
            self._copy(self._bytes[self._now][staged], host[part])
            self.device.upload(device_bytes[part], self._pinned[self._now][staged])
            start, self._used = start + size, self._used + size

    def put_rows(self, target: torch.Tensor, parts: Iterable[Weight | ByteArray]) -> None:
        """The parts, one below the other."""
        row = 0
        for part in parts:
            self.put(target[row : row + len(part)], part)
            row += len(part)
        assert row == len(target), f"{row} rows for {list(target.shape)}"

    def _turn(self) -> None:
        """Go on in the other buffer."""
        self._copied[self._now] = self.device.record()
        self._now, self._used = 1 - self._now, 0
        self._copied[self._now].wait()

    def _copy(self, target: ByteArray, source: ByteArray) -> None:
        parts = (np.array_split(whole, COPY_THREADS) for whole in (target, source))
        list(self._threads.map(np.copyto, *parts))  # without the GIL


def host_tensor(array: Weight | ByteArray, widened: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A checkpoint's array as torch sees it; uint16 holds bfloat16 bits. A read-only mapping is copied first.

    A matrix that is stored quantised is widened, some rows at a time.
    """
    if isinstance(array, StoredMatrix):
        return torch.cat([torch.from_numpy(part).to(widened) for part in float_parts(array)])
    owned = np.require(array, requirements=["C", "W"])
    if owned.dtype == np.uint16:
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)


def _bytes_of(source: Weight | ByteArray | torch.Tensor, dtype: torch.dtype) -> ByteArray:
    """A tensor's bytes in this type: a mapped file's own where it holds that type."""
    if isinstance(source, np.ndarray) and _HELD.get(source.dtype) == dtype:
        return np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    tensor = source if isinstance(source, torch.Tensor) else host_tensor(source, dtype)
    found: ByteArray = tensor.to(dtype).contiguous().view(-1).view(torch.uint8).numpy()
    return found
