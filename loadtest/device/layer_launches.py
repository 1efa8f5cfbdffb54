"""Which kernels a layer of a decode step launches, by launching: those of two layers less those of one."""

from __future__ import annotations

from dataclasses import replace as changed
from functools import partial
from typing import Any

from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from triolet.kernels.gpu.launches import KernelForm, recording
from triolet.loadtest.device.compile_catalogue import RecordingDevice, sizes_of
from triolet.loadtest.device.compile_models import LaunchedModel
from triolet.models.gpu.buckets import PassShape
from triolet.models.gpu.device import Graph, Work
from triolet.models.gpu.gpu import GpuModel

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten._scaled_mm")  # torch's, each a kernel of a library


class CountingDevice(RecordingDevice):
    """Names the launches of each half of each shape as it is captured."""

    def __init__(self, capability: int) -> None:
        super().__init__(capability)
        self.captured = dict[tuple[str, PassShape], list[str]]()
        self.launched = list[str]()

    def note(self, form: KernelForm) -> None:
        self.launched.append(form.name.rpartition(".")[2])

    def capture(self, work: Work) -> Graph:
        assert isinstance(work, partial)
        self.launched = self.captured[work.func.__name__, work.args[0]] = []
        work()
        return self


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    def __init__(self, device: CountingDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        if str(func).startswith(PRODUCTS):
            self._device.launched.append("library product")
        return func(*args, **(kwargs or {}))


def launches_of_layer(served: LaunchedModel, rows: int, capability: int) -> list[str]:
    """Names of the kernels, in their order, of one layer for so many sequences that decode."""
    one, two = (_launches_of_layers(served, rows, capability, layers) for layers in (1, 2))
    return two[len(one) :]


def _launches_of_layers(served: LaunchedModel, rows: int, capability: int, layers: int) -> list[str]:
    device = CountingDevice(capability)
    spec = replace(served.spec, layers=served.spec.layers * layers)
    sizes = sizes_of(changed(served, spec=spec, max_running=rows, max_rows=rows, max_tokens=max(2, rows)))
    with recording(device.note), _Products(device):
        GpuModel(device, spec, None, sizes)
    return device.captured["_run_layers", PassShape(rows, rows, rows, decode=True)]
