"""The real device: an NVIDIA GPU through torch. Everything here behaves like its counterpart in `rehearsal.py`.

Events block (`torch.cuda.Event(blocking=True)`; plain `torch.Event` ignores the flag and spins). The current stream and
inference mode are per thread, so both are set at every entry.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final, cast

import torch

from ...kernels.gpu.language import OVERLAPPING, overlap_launches
from .device import DeviceEvent, Graph, Growth, Result, Work

_compilations = 0


def _count_compilation(**_: Any) -> None:  # Any: whatever Triton passes to its hooks
    global _compilations
    _compilations += 1


class CudaDevice:
    """One GPU, one stream on it."""

    def __init__(self, index: int = 0) -> None:
        from triton import knobs

        self.place: Final = torch.device("cuda", index)
        torch.cuda.set_device(self.place)
        properties = cast("Any", torch.cuda.get_device_properties(self.place))  # Any: torch declares no fields
        self.capability: Final = 10 * int(properties.major) + int(properties.minor)
        self.multiprocessors: Final = int(properties.multi_processor_count)
        self.name: Final = str(properties.name)
        self._stream = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]  # torch has no types for it
        self._pool: Any = torch.cuda.graph_pool_handle()  # Any: an opaque handle, shared by all graphs
        self._allocations = self._compilations = 0
        knobs.runtime.jit_post_compile_hook = _count_compilation
        overlap_launches(self.capability >= OVERLAPPING)
        # Otherwise cuBLAS may add split sums in bfloat16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_tf32 = False  # float32 is for those who want all its bits

    def free_memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self.place)
        return int(free), int(total)

    def allocate(self, size: int) -> torch.Tensor:
        torch.cuda.empty_cache()  # what loading took for a while is no part of the memory plan
        memory = torch.zeros(size, dtype=torch.uint8, device=self.place)
        torch.cuda.synchronize(self.place)  # it was zeroed on another stream
        return memory

    def pinned(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream), torch.inference_mode():
            target.copy_(source, non_blocking=True)

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.upload(target, source)

    def run(self, work: Callable[[], Result]) -> Result:
        with torch.cuda.stream(self._stream), torch.inference_mode():
            return work()

    def compile(self, work: Work) -> None:
        self.run(work)

    def capture(self, work: Work) -> Graph:
        # Not with `torch.cuda.graph`, which collects garbage and empties the allocator's cache for every graph.
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # unloading a kernel module during a capture invalidates it
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool)
                try:
                    work()
                finally:
                    graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        captured = _CudaGraph(graph, self._stream, work)
        captured.replay()  # the first replay uploads the graph, which takes time and memory: not during a step
        self._stream.synchronize()
        return captured

    def record(self) -> DeviceEvent:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no types for it
        event.record(self._stream)
        return _CudaEvent(event)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def seal(self) -> None:
        self._allocations, self._compilations = self._allocated(), _compilations

    def growth(self) -> Growth:
        return Growth(self._allocated() - self._allocations, _compilations - self._compilations)

    def _allocated(self) -> int:
        """Allocations so far, including those served from the caching allocator's cache."""
        # Called after every step; the flat form of these statistics would first sort hundreds of keys.
        counters = torch.cuda.memory_stats_as_nested_dict(self.place)
        return int(counters["allocation"]["all"]["allocated"]) if counters else 0


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, work: Work) -> None:
        self._graph, self._stream = graph, stream
        self._alive = work  # the tensors and kernels whose addresses were captured

    def replay(self) -> None:
        with torch.cuda.stream(self._stream):
            self._graph.replay()
