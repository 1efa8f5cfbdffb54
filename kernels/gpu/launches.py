"""The compiled form of a launch: one rule by which launches are distinguished, recorded and compiled.

Triton compiles a kernel anew for every combination of argument types, constants, alignments and launch options that
it is launched with. `form_of` names that combination; `recording` collects the forms of launches without running them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from .language import jit

TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.uint8: "u8", torch.int8: "i8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
}  # fmt: skip
OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}  # Triton's defaults, if a launch sets none


@dataclass(frozen=True, slots=True)
class KernelForm:
    """One compiled form of a kernel. Equal forms are compiled once."""

    kernel: Any = field(compare=False)  # Any: what triton.jit returns
    name: str  # of the kernel, including its module
    signature: tuple[tuple[str, str], ...]  # arguments and Triton types: "*bf16", "i32", "tensordesc<bf16[128, 64]>", …
    constants: tuple[tuple[str, Any], ...]  # arguments of type "constexpr"; Any: whatever one may be
    aligned: frozenset[str]  # addresses and integers divisible by 16
    num_warps: int
    num_stages: int
    fuses: bool  # whether a product and a sum may be rounded once

    @property
    def operation(self) -> str:
        """The folder of the kernel."""
        return self.name.split(".")[-3]

    @property
    def types(self) -> dict[str, str]:
        return dict(self.signature)

    @property
    def values(self) -> dict[str, Any]:  # Any: of constants
        return dict(self.constants)


def form_of(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelForm:  # Any: Triton's own
    """The form of a launch with these arguments, by Triton's rules, for a compiled or interpreted kernel."""
    given = dict(zip(kernel.arg_names, args, strict=False)) | dict(kwargs)
    untouched = _not_specialised(kernel)
    declared = {name for name, kind in kernel.fn.__annotations__.items() if "constexpr" in str(kind)}
    signature, constants, aligned = list[tuple[str, str]](), list[tuple[str, Any]](), set[str]()
    for name in kernel.arg_names:
        value = given[name]
        whole = type(value) is int and name not in untouched
        if name in declared or value is None or (whole and value == 1):
            signature.append((name, "constexpr"))
            constants.append((name, getattr(value, "value", value)))
            continue
        signature.append((name, _type(value)))
        if (isinstance(value, torch.Tensor) and value.data_ptr() % 16 == 0) or (whole and value % 16 == 0):
            aligned.add(name)
    options = {name: given.get(name, default) for name, default in OPTIONS.items()}
    return KernelForm(
        kernel, f"{kernel.fn.__module__}.{kernel.fn.__name__}", tuple(signature), tuple(constants), frozenset(aligned),
        options["num_warps"], options["num_stages"], options["enable_fp_fusion"],
    )  # fmt: skip


@contextmanager
def recording(record: Callable[[KernelForm], None]) -> Generator[None]:
    """Inside, no kernel is launched: `record` gets each form instead. For one thread of a process."""
    launcher: Any = type(_any_kernel)  # Any: Triton's own class, one of whose methods is replaced
    run = launcher.run

    def note(kernel: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:  # Any: Triton's own
        record(form_of(kernel, args, kwargs))

    launcher.run = note
    try:
        yield
    finally:
        launcher.run = run


def _type(value: Any) -> str:  # Any: an argument of a launch
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "u1"
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


def _not_specialised(kernel: Any) -> set[str]:  # Any: what triton.jit returns, for compiling or for interpreting
    listed = kernel.kwargs["do_not_specialize"] if hasattr(kernel, "kwargs") else kernel.do_not_specialize
    return {kernel.arg_names[name] if isinstance(name, int) else name for name in listed or ()}


@jit
def _any_kernel():
    pass
