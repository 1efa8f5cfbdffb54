"""The interface of a GPU: memory, one ordered stream of work, events, graphs. Two devices implement it.

`cuda.py` is the real one. `rehearsal.py` runs the same launches in the interpreter and raises for
mistakes that a GPU would not report. Both count allocations and compilations after `seal()`.

One stream: a step's upload, kernels and download run in order, and so do steps. So no event is
needed between two pieces of device work. One thread enqueues; any thread may wait for an event.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

Work = Callable[[], object]
Result = TypeVar("Result")


class DeviceFault(RuntimeError):
    """We broke a rule of the device: the step fails, and with it the worker."""


class Growth(NamedTuple):
    """Counts since `seal()`; both stay zero while serving."""

    allocations: int  # of device memory
    compilations: int  # of kernels, one per new specialisation


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
        """90 for sm_90; selects launch tables."""
        ...

    @property
    def multiprocessors(self) -> int: ...

    def free_memory(self) -> tuple[int, int]:
        """Bytes of free device memory, and bytes in total."""
        ...

    def allocate(self, size: int) -> torch.Tensor:
        """Zeroed device memory, uint8 [size]."""
        ...

    def pinned(self, size: int) -> torch.Tensor:
        """Zeroed host memory that the device can copy from and to, uint8 [size]."""
        ...

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy from pinned memory. It must not change until a later event was waited for."""
        ...

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy to pinned memory. It is not valid until a later event was waited for."""
        ...

    def run(self, work: Callable[[], Result]) -> Result:
        """Enqueue the launches that `work` makes: Triton kernels and torch operations, in steps with `out=`."""
        ...

    def compile(self, work: Work) -> None:
        """Have all kernels that `work` launches. A device may run it for that, so its inputs must be valid."""
        ...

    def capture(self, work: Work) -> Graph:
        """Record the launches of `work`, which must have been compiled before. A device may replay the graph once to
        prepare it, so its inputs must be valid.
        """
        ...

    def record(self) -> DeviceEvent: ...

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        ...

    def seal(self) -> None:
        """Everything is allocated and compiled; count from here."""
        ...

    def growth(self) -> Growth: ...


def missing_package() -> str:
    """Which of the packages that the GPU's kernels need is missing, with the remedy; empty if none is."""
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            return f"{name} is not installed: run pip install '.[cuda]' in a checkout of Triolet"
    return ""


def gpu_problem() -> str:
    """Why no GPU can be used here; empty if one can. Imports torch."""
    if missing := missing_package():
        return missing
    try:
        import torch
        import triton
    except (ImportError, OSError) as error:  # one of their libraries is missing, or does not fit
        return f"torch or triton is installed but cannot be imported ({error}): install both again"
    del triton
    if not torch.cuda.is_available():
        return "torch sees no GPU: check `nvidia-smi` and that torch was built for CUDA"
    if torch.cuda.get_device_capability() < (8, 0):
        return "the GPU is older than compute capability 8.0 (Ampere)"
    return ""
