"""One allocation cut into named, aligned tensors: what a step touches has an address for life.

A `Layout` is pure arithmetic, so the memory plan asks it for sizes before a device is touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .device import Device

ALIGNMENT = 256  # bytes: what cudaMalloc gives, and more than any vector load or tensor descriptor asks for


@dataclass(slots=True)
class Layout:
    """Names, shapes and types, in the order in which they lie in memory."""

    entries: dict[str, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)

    def add(self, name: str, dtype: torch.dtype, *shape: int) -> None:
        if name in self.entries:
            raise ValueError(f"{name} is in the layout already")
        self.entries[name] = (shape, dtype)

    def extend(self, other: Layout) -> None:
        for name, (shape, dtype) in other.entries.items():
            self.add(name, dtype, *shape)

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return sum(_padded(math.prod(shape) * dtype.itemsize) for shape, dtype in self.entries.values())


class Arena:
    """The tensors of a layout, on a device or, with `pinned`, in host memory that it copies from."""

    def __init__(self, device: Device, layout: Layout, *, pinned: bool = False) -> None:
        self.memory = (device.pinned if pinned else device.allocate)(max(1, layout.size))
        self._tensors: dict[str, torch.Tensor] = {}
        start = 0
        for name, (shape, dtype) in layout.entries.items():
            size = math.prod(shape) * dtype.itemsize
            self._tensors[name] = self.memory[start : start + size].view(dtype).view(shape)
            start += _padded(size)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get(self, name: str) -> torch.Tensor | None:
        """None where the layout has no such tensor."""
        return self._tensors.get(name)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
