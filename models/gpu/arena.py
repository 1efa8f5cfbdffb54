"""One allocation divided into named, aligned tensors, so that everything a step touches has a fixed address.

A `Layout` is pure arithmetic, so the memory plan gets sizes from it before it touches a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .device import Device

ALIGNMENT = 256  # bytes: as cudaMalloc, and more than any vector load or tensor descriptor needs


@dataclass(slots=True)
class Layout:
    """Names, shapes and types, in memory order."""

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
        """Total bytes."""
        return sum(_padded(math.prod(shape) * dtype.itemsize) for shape, dtype in self.entries.values())

    def placed(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors in memory, uint8 [..., size]; dimensions before the last one are theirs too."""
        tensors: dict[str, torch.Tensor] = {}
        start = 0
        for name, (shape, dtype) in self.entries.items():
            size = math.prod(shape) * dtype.itemsize
            tensors[name] = memory[..., start : start + size].view(dtype).view(*memory.shape[:-1], *shape)
            start += _padded(size)
        return tensors


class Arena:
    """The tensors of a layout on a device or, with `pinned`, in host memory that the device copies from."""

    def __init__(self, device: Device, layout: Layout, *, pinned: bool = False) -> None:
        self.memory = (device.pinned if pinned else device.allocate)(max(1, layout.size))
        self._tensors = layout.placed(self.memory)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get(self, name: str) -> torch.Tensor | None:
        """The tensor; None if the layout has none of this name."""
        return self._tensors.get(name)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
