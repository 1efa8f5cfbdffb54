"""Triton for all our kernels: `jit` and `tl`, on both supported versions (3.6 and 3.9).

Import these names only from here, so that everything needed before Triton's first import is set. A process
either compiles for a GPU or interprets on the CPU; which one is decided once, before that import (`interpret_kernels`).
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

# We want multiply-add fusion. Triton 3.9 warns unless it is set, because 3.10 changes the default.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl
from triton import knobs
from triton.language import core
from triton.language.extra import cuda
from triton.runtime import jit as triton_jit

JITFunction: Any = triton_jit.JITFunction  # Any: one of its methods may be replaced
_run = JITFunction.run
_PACKAGE = __name__.partition(".")[0] + "."
OVERLAPPING = 90  # the least capability whose launches may overlap
INTERPRETED = bool(knobs.runtime.interpret)
if INTERPRETED:
    from .interpreter import correct_low_precision
    from .interpreter_speed import prepare_once

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


@core.extern
def _wait(_semantic: Any = None) -> None:  # Any: Triton's own, while it compiles
    """Before a kernel's first load or store: with `overlap_launches`, the kernel in front may still be running.

    On sm_90 and newer this waits until that one has ended and all that it wrote can be read, and only then lets the
    next kernel begin to wait. So of three kernels in a row the third begins after the first has ended, and whoever has
    waited may also write what an earlier kernel read.
    """
    arch = re.match(r"sm_?(\d+)", str(_semantic.builder.options.arch))
    if arch is not None and int(arch[1]) >= OVERLAPPING:
        cuda.gdc_wait(_semantic=_semantic)
        cuda.gdc_launch_dependents(_semantic=_semantic)


@jit
def _go_on():
    """Where kernels are interpreted, one has ended before the next begins."""


await_inputs: Any = _go_on if INTERPRETED else _wait  # Any: for kernels alone


def overlap_launches(overlap: bool) -> None:
    """Whether our kernels, launched from now on, begin while the one in front of them ends (programmatic dependent
    launch).

    Their programs are then on the device when its last program ends: about a microsecond is saved a launch. For GPUs of
    capability 9.0 and newer. It is a launch option of every kernel, in a CUDA graph too. Others' kernels do not wait.
    """
    JITFunction.run = _run_overlapping if overlap else _run


def _run_overlapping(kernel: Any, *args: Any, **options: Any) -> Any:  # Any: Triton's own
    return _run(kernel, *args, **options, launch_pdl=kernel.fn.__module__.startswith(_PACKAGE))


cdiv: Callable[[int, int], int] = triton.cdiv
next_power_of_2: Callable[[int], int] = triton.next_power_of_2

__all__ = [
    "INTERPRETED",
    "OVERLAPPING",
    "Kernel",
    "await_inputs",
    "cdiv",
    "jit",
    "next_power_of_2",
    "overlap_launches",
    "tl",
]
