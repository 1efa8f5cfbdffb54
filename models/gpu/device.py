"""What a GPU is to everything above it: memory, one stream of work in order, events, graphs. Two devices implement it.

`cuda.py` is the real one. `rehearsal.py` runs the same launches in the interpreter and holds its user to the
rules that a GPU would punish in silence. Both count what is allocated and compiled after `seal()`.

One stream: a step's upload, kernels and download follow each other, and steps follow each other, so no event is ever
needed between two pieces of device work. One thread enqueues; any thread may wait for an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

Work = Callable[[], object]


class DeviceFault(RuntimeError):
    """A rule of the device was broken: by us, so the step fails and with it the worker."""


class Growth(NamedTuple):
    """What happened since `seal()`; both stay zero while serving."""

    allocations: int  # of device memory
    compilations: int  # of kernels, one for each new specialisation


class DeviceEvent(Protocol):
    def wait(self) -> None:
        """Block until all work enqueued before this event is done. From any thread, without the GIL."""
        ...


class Graph(Protocol):
    def replay(self) -> None:
        """Enqueue the captured launches, with the addresses they were captured with."""
        ...


class Device(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def place(self) -> torch.device: ...
    @property
    def capability(self) -> int:
        """90 for sm_90: what launch tables are chosen by."""
        ...

    @property
    def multiprocessors(self) -> int: ...

    def free_memory(self) -> tuple[int, int]:
        """Bytes of device memory that may still be taken, and bytes in all."""
        ...

    def allocate(self, size: int) -> torch.Tensor:
        """Zeroed device memory, uint8 [size]."""
        ...

    def pinned(self, size: int) -> torch.Tensor:
        """Zeroed host memory that the device can copy from and to, uint8 [size]."""
        ...

    def load(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy any host tensor to the device, waiting for it: for loading, never for a step."""
        ...

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy from pinned memory, which must not change until an event after it was waited for."""
        ...

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy to pinned memory, which holds nothing until an event after it was waited for."""
        ...

    def run(self, work: Work) -> None:
        """Enqueue the launches that `work` makes: Triton kernels and torch operations with `out=`."""
        ...

    def capture(self, work: Work) -> Graph:
        """Record the launches of `work`; it must have run before, so that all is compiled. A device may replay the
        graph once to make it ready: what it reads must be valid.
        """
        ...

    def record(self) -> DeviceEvent: ...

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        ...

    def seal(self) -> None:
        """All is allocated and compiled: count from here."""
        ...

    def growth(self) -> Growth: ...


def gpu_problem() -> str:
    """Why there is no GPU to use here; empty where there is one. Imports torch."""
    try:
        import torch
        import triton
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'triolet[cuda]'"
    del triton
    if not torch.cuda.is_available():
        return "torch sees no GPU: check `nvidia-smi` and that torch was built for CUDA"
    if torch.cuda.get_device_capability() < (8, 0):
        return "the GPU is older than compute capability 8.0 (Ampere)"
    return ""
