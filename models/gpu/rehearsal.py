"""A device without a GPU: Triton's interpreter runs the real launches on CPU tensors and checks a GPU's rules.

Launches run late: work stays in the stream until a later event is waited for. So a result read too early
holds poison, and a pinned buffer overwritten too early is detected. Breaking a rule that a real
device does not check raises here:

- a launch takes only device memory: a host tensor would be read at an unexpected time,
- nothing inside `run` or `capture` reads a device value back,
- a capture allocates nothing; a replay finds all memory where it was,
- copies to and from the host use pinned memory.

Allocations and new kernel specialisations are counted by the rules of the real device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...kernels.gpu.launches import KernelForm
from .device import DeviceEvent, DeviceFault, Graph, Growth, Result, Work
from .rehearsal_launches import Launch, Recording

POISON = 0xA5  # fills a download's target until the copy has run: NaN-like as a float, absurd as a token id


class RehearsalDevice:
    """Uses the process's memory; `memory` is only the size that the plan may assume."""

    def __init__(self, memory: int = 1 << 30, capability: int = 90) -> None:
        self.place: Final = torch.device("cpu")
        self.capability: Final = capability
        self.multiprocessors: Final = 2  # few: the interpreter runs programs one after another
        self.name: Final = "rehearsal (interpreted kernels)"
        self._memory = memory
        self._device_memory: dict[int, StorageWeakRef] = {}
        self._pinned_memory: dict[int, StorageWeakRef] = {}
        self._stream: deque[Launch] = deque()
        self._enqueued = self._done = 0
        self._running = threading.RLock()
        self._fault: Exception | None = None
        self.forms: set[KernelForm] = set()  # of everything launched or captured so far
        self._allocations = 0
        self._sealed = Growth(0, 0)

    def free_memory(self) -> tuple[int, int]:
        return self._memory, self._memory

    def allocate(self, size: int) -> torch.Tensor:
        memory = torch.zeros(size, dtype=torch.uint8)
        self._own(memory)
        return memory

    def pinned(self, size: int) -> torch.Tensor:
        memory = torch.zeros(size, dtype=torch.uint8)
        _register(self._pinned_memory, memory)
        return memory

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if not _registered(self._pinned_memory, source):
            raise DeviceFault("upload from memory that is not pinned: the copy would wait for the device")
        meant = source.clone()

        def copy() -> None:
            if not torch.equal(source.view(torch.uint8), meant.view(torch.uint8)):
                raise DeviceFault("a pinned buffer was overwritten before the device had read it")
            target.copy_(meant)

        self._enqueue(copy)

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if not _registered(self._pinned_memory, target):
            raise DeviceFault("download to memory that is not pinned: the copy would wait for the device")
        target.view(torch.uint8).fill_(POISON)
        self._enqueue(lambda: target.copy_(source))

    def run(self, work: Callable[[], Result]) -> Result:
        with self._recording(capturing=False) as recording:
            result = work()
        self._take(recording)
        self._enqueue(recording.made.clear)  # a GPU's allocator too gives memory only to launches behind its last use
        return result

    def compile(self, work: Work) -> None:
        """Nothing is: what would be is noted, and does not run."""
        with self._recording(capturing=False) as recording:
            work()
        self.forms |= recording.forms

    def capture(self, work: Work) -> Graph:
        known = len(self.forms)
        with self._recording(capturing=True) as recording:
            work()
        self.forms |= recording.forms
        if len(self.forms) > known:
            raise DeviceFault("a kernel is compiled during capture: compile the same work before")
        return _RehearsalGraph(recording.launches, self._enqueue)

    def record(self) -> DeviceEvent:
        return _RehearsalEvent(partial(self._run_until, self._enqueued))

    def synchronize(self) -> None:
        self._run_until(self._enqueued)

    def seal(self) -> None:
        self._sealed = Growth(self._allocations, len(self.forms))

    def growth(self) -> Growth:
        return Growth(self._allocations - self._sealed.allocations, len(self.forms) - self._sealed.compilations)

    def _recording(self, *, capturing: bool) -> Recording:
        return Recording(
            capturing=capturing, owns=partial(_registered, self._device_memory), own=self._own, drain=self._drain
        )

    def _drain(self, recording: Recording) -> None:
        """Run everything recorded so far, because an operation that makes a new tensor needs its inputs now."""
        self._take(recording)
        self.synchronize()

    def _take(self, recording: Recording) -> None:
        self.forms |= recording.forms
        for launch in recording.launches:
            self._enqueue(launch)
        recording.launches.clear()

    def _own(self, memory: torch.Tensor) -> None:
        self._allocations += 1
        _register(self._device_memory, memory)

    def _enqueue(self, launch: Launch) -> None:
        with self._running:
            self._stream.append(launch)
            self._enqueued += 1

    def _run_until(self, position: int) -> None:
        """Run the stream up to a position. After a fault, every later call raises it again, as on a GPU."""
        with self._running:
            while self._done < position and self._fault is None:
                launch = self._stream.popleft()
                self._done += 1
                try:
                    with torch.inference_mode():
                        launch()
                except Exception as error:
                    self._fault = error
            if self._fault is not None:
                raise self._fault


class _RehearsalEvent:
    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def wait(self) -> None:
        self._run()


class _RehearsalGraph:
    def __init__(self, launches: list[Launch], enqueue: Callable[[Launch], None]) -> None:
        self._launches, self._enqueue = launches, enqueue

    def replay(self) -> None:
        for launch in self._launches:
            self._enqueue(launch)


def _register(table: dict[int, StorageWeakRef], memory: torch.Tensor) -> None:
    for key in [key for key, reference in table.items() if reference.expired()]:  # type: ignore[no-untyped-call]  # torch has no types for it
        del table[key]
    reference = StorageWeakRef(memory.untyped_storage())  # type: ignore[no-untyped-call]  # torch has no types for it
    table[reference.cdata] = reference


def _registered(table: dict[int, StorageWeakRef], memory: torch.Tensor) -> bool:
    # The weak reference keeps the storage header's address from being reused, so the address is an identity.
    return memory.untyped_storage()._cdata in table  # pyright: ignore[reportPrivateUsage]  # torch has no public way
