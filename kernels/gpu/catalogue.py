"""Every compiled form that serving may launch: compiled for every target by `make kernels`, held to limits by tests."""

from collections.abc import Callable, Iterator
from importlib import import_module

from .compiling import Specialisation

# Each has a file `gpu_specialisations` whose `specialisations()` follows from its launch table.
OPERATIONS = (
    "embedding", "gemm", "paged_attention", "quantise", "rms_norm", "rope", "sampling", "silu_mul", "step_inputs",
)  # fmt: skip


def every_specialisation() -> Iterator[tuple[str, Specialisation]]:
    """(operation, specialisation). Imports Triton for compiling: not in a process that interprets."""
    for operation in OPERATIONS:
        module = import_module(f"..{operation}.gpu_specialisations", __package__)
        made: Callable[[], Iterator[Specialisation]] = module.specialisations
        for specialisation in made():
            yield operation, specialisation
