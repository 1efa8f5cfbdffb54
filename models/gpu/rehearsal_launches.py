"""Launches as the rehearsal device keeps them: what to run, on which addresses, and under which rules.

A torch operation is seen by a dispatch mode, a Triton kernel by the interpreter's own launcher. Neither runs while it
is recorded. Tensors are remembered by address, not held: memory that was freed or moved must be noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Self, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch as dispatch
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from ...kernels.gpu.launches import KernelForm, form_of
from .device import DeviceFault

Launch = Callable[[], object]
_current = threading.local()
_interpreter: Any = interpreter  # Any: it is untyped, and two of its functions are replaced
_run_kernel: Callable[..., None] = _interpreter.InterpretedFunction.run
_without_modes: Callable[[], AbstractContextManager[object]] = dispatch._disable_current_modes  # pyright: ignore[reportPrivateUsage]  # torch has no public way


class TensorAddress:
    """A tensor by its place in memory: raises where that is no longer what it was."""

    def __init__(self, tensor: torch.Tensor, use: str) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch has no types for it
        self._start = tensor.untyped_storage().data_ptr()
        self._view = (tensor.storage_offset(), tensor.size(), tensor.stride())
        self._dtype, self._use = tensor.dtype, use

    def tensor(self) -> torch.Tensor:
        if self._storage.expired():  # type: ignore[no-untyped-call]  # torch has no types for it
            raise DeviceFault(f"{self._use} uses memory that was freed")
        of_reference = cast("Callable[[object], torch.UntypedStorage]", torch.UntypedStorage._new_with_weak_ptr)  # pyright: ignore[reportPrivateUsage]  # torch has no public way
        storage = of_reference(cast("object", self._storage.cdata))
        if storage.data_ptr() != self._start:
            raise DeviceFault(f"{self._use} uses memory that was moved")
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._view)


class Recording(dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """While it is entered, operations and kernels are appended to `launches` in place of being run."""

    def __init__(
        self,
        *,
        capturing: bool,
        owns: Callable[[torch.Tensor], bool],
        own: Callable[[torch.Tensor], None],
        drain: Callable[[Recording], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.launches: list[Launch] = []
        self.forms: set[KernelForm] = set()
        self.made: list[torch.Tensor] = []
        self._capturing, self._owns, self._own, self._drain = capturing, owns, own, drain

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this mode is entered; saying so would import torch's compiler, in two seconds."""
        return False

    def __enter__(self) -> Self:
        _current.recording = self
        super().__enter__()  # type: ignore[no-untyped-call]  # torch has no types for it
        return self

    def __exit__(self, *error: object) -> None:
        _current.recording = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch has no types for it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's own
        kwargs = kwargs or {}
        tags = set(func.tags)
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            raise DeviceFault(f"{func} reads a value back from the device")
        if func.is_view:
            return func(*args, **kwargs)
        self._check(str(func), (args, kwargs))
        written = [
            value
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for value in [args[place] if place < len(args) else kwargs.get(argument.name)]
            if value is not None
        ]
        if not written or "resize_" in str(func) or "set_" in str(func):
            return self._allocate(func, args, kwargs)
        addresses = tree_map(partial(_address, str(func)), (args, kwargs))
        self.launches.append(partial(_run_operation, func, addresses))
        return written[0] if len(written) == 1 else tuple(written)

    def add_kernel(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:  # Any: Triton's
        name = str(kernel.__name__)
        with _without_modes():
            self._check(name, (args, kwargs))
            named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
            self.forms.add(form_of(kernel, args, kwargs))
            addresses = tree_map(partial(_address, name), (args, kwargs))
            # What depends on the host is settled now, as for a launch of a compiled kernel.
            shape: Any = grid(named) if callable(grid) else grid  # Any: Triton's
            settled = tuple(shape)
        self.launches.append(partial(_run_recorded, kernel, settled, addresses))

    def _check(self, name: str, values: Any) -> None:  # Any: a tree of arguments
        for tensor in _tensors(values):
            if tensor.numel() and not self._owns(tensor):
                raise DeviceFault(f"{name} takes a host tensor of shape {list(tensor.shape)}, not device memory")

    def _allocate(self, func: Any, args: Any, kwargs: Any) -> Any:  # Any: torch's own
        if self._capturing:
            raise DeviceFault(f"{func} allocates memory during capture")
        with _without_modes():
            self._drain(self)
            result = func(*args, **kwargs)
            for tensor in _tensors(result):
                if not self._owns(tensor):
                    self._own(tensor)
                    self.made.append(tensor)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:  # Any: a tree of arguments
    leaves = [leaf.base if isinstance(leaf, TensorDescriptor) else leaf for leaf in tree_leaves(tree)]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class _Descriptor:
    """A tensor descriptor with its base by address."""

    def __init__(self, descriptor: TensorDescriptor, use: str) -> None:
        self._fields: dict[str, Any] = {**vars(descriptor)}  # Any: of several types
        del self._fields["base"]
        self._base = TensorAddress(descriptor.base, use)

    def descriptor(self) -> TensorDescriptor:
        return TensorDescriptor(base=self._base.tensor(), **self._fields)


def _address(use: str, value: Any) -> Any:  # Any: an argument of a launch
    if isinstance(value, TensorDescriptor):
        return _Descriptor(value, use)
    return TensorAddress(value, use) if isinstance(value, torch.Tensor) else value


def _resolved(value: Any) -> Any:  # Any: an argument of a launch
    if isinstance(value, _Descriptor):
        return value.descriptor()
    return value.tensor() if isinstance(value, TensorAddress) else value


def _run_operation(func: Any, addresses: Any) -> None:  # Any: torch's own
    args, kwargs = tree_map(_resolved, addresses)
    func(*args, **kwargs)


def _run_recorded(kernel: Any, grid: tuple[int, ...], addresses: Any) -> None:  # Any: Triton's own
    args, kwargs = tree_map(_resolved, addresses)
    _run_kernel(kernel, *args, grid=grid, warmup=False, **kwargs)


def _launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:  # Any: Triton's own
    """In place of the interpreter's launch: to the recording of this thread, if there is one."""
    recording: Recording | None = getattr(_current, "recording", None)
    if recording is None:
        _run_kernel(kernel, *args, grid=grid, warmup=warmup, **kwargs)
    else:
        recording.add_kernel(kernel, grid, args, kwargs)


def _in_place(executor: Any, args: Any, hosts: Any, kwargs: Any, kwargs_hosts: Any) -> None:  # Any: Triton's own
    """Nothing to copy back: the interpreter's tensors share the memory of the caller's, which may be large."""


_interpreter.InterpretedFunction.run = _launch
_interpreter.GridExecutor._restore_args_dev = _in_place
