"""What runs a model's steps: one interface for every device. Nothing heavy is imported here."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from ..protocol.steps import MemoryPlan, Step, StepDone


class PendingStep(Struct, frozen=True):
    """A step that was begun. `wait` is called once, from any one thread, in the order of the steps."""

    wait: Callable[[], StepDone]
    computed: bool = False  # the step has run to its end: `wait` returns at once


class Stepper(Protocol):
    """Owns the worker's sequences and the device they live on. One thread calls it.

    A step that raises is the last one: what it left behind is unknown.
    """

    def begin_step(self, step: Step) -> PendingStep:
        """Compute a step, or launch it: then the next one may be begun before this one is waited for."""
        ...

    def close(self) -> None:
        """Stop its threads and wait for its device. Idempotent."""
        ...


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A model on its device, and the facts about it that the checkpoint does not have."""

    stepper: Stepper
    device: str
    dtype: str
    kv_cache_dtype: str
    context_length: int
    memory: MemoryPlan
    libraries: tuple[str, ...]  # packages that the kernels depend on
