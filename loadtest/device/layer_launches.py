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


Launched = tuple[str, KernelForm | None]  # a kernel's name and form; a library's has none of ours
Captured = dict[tuple[str, PassShape], list[Launched]]  # by the half of a pass and its shape


class ListingDevice(RecordingDevice):
    """Keeps the launches of each half of each shape as it is captured."""

    def __init__(self, capability: int) -> None:
        super().__init__(capability)
        self.captured: Captured = {}
        self.launched = list[Launched]()

    def note(self, form: KernelForm) -> None:
        self.launched.append((form.name.rpartition(".")[2], form))

    def capture(self, work: Work) -> Graph:
        assert isinstance(work, partial)
        self.launched = self.captured[work.func.__name__, work.args[0]] = []
        work()
        return self


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    def __init__(self, device: ListingDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        if str(func).startswith(PRODUCTS):
            self._device.launched.append(("library product", None))
        return func(*args, **(kwargs or {}))


def captured_launches(served: LaunchedModel, capability: int) -> Captured:
    """All that a worker with this model would replay."""
    device = ListingDevice(capability)
    with recording(device.note), _Products(device):
        GpuModel(device, served.spec, None, sizes_of(served))
    return device.captured


def launches_of_layer(served: LaunchedModel, rows: int, capability: int) -> list[str]:
    """Names of the kernels, in their order, of one layer for so many sequences that decode."""
    layers, half = served.spec.layers, ("_run_layers", PassShape(rows, rows, rows, decode=True))
    served = changed(served, max_running=rows, max_rows=rows, max_tokens=max(2, rows))
    models = (changed(served, spec=replace(served.spec, layers=layers * count)) for count in (1, 2))
    one, two = (captured_launches(model, capability)[half] for model in models)
    return [name for name, _ in two[len(one) :]]
