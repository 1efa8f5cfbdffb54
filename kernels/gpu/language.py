"""Triton for all our kernels: `jit` and `tl`, on both supported versions (3.6 and 3.9).

Import these names only from here, so that everything needed before Triton's first import is set. A process
either compiles for a GPU or interprets on the CPU; which one is decided once, before that import (`interpret_kernels`).
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

# We want multiply-add fusion. Triton 3.9 warns unless it is set, because 3.10 changes the default.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = bool(knobs.runtime.interpret)
if INTERPRETED:
    from .interpreter import correct_low_precision, prepare_once

    prepare_once()
    correct_low_precision()


class Kernel(Protocol):
    """What `jit` returns. Arguments are Any: a launch takes tensors, numbers, constants and options by name."""

    @property
    def fn(self) -> Callable[..., Any]: ...

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...

    def __call__(self, *arguments: Any, **constants: Any) -> Any: ...  # by another kernel


@overload
def jit(kernel: Callable[..., Any], /) -> Kernel: ...
@overload
def jit(*, do_not_specialize: Sequence[str]) -> Callable[[Callable[..., Any]], Kernel]: ...
def jit(*kernel: Any, **options: Any) -> Any:
    """`triton.jit` with a type: Triton's own promises the plain function, which nobody may call."""
    return triton.jit(*kernel, **options)


cdiv: Callable[[int, int], int] = triton.cdiv
next_power_of_2: Callable[[int], int] = triton.next_power_of_2

__all__ = ["INTERPRETED", "Kernel", "cdiv", "jit", "next_power_of_2", "tl"]
