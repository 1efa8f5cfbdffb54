"""The interface for running a model's steps, the same for every device. Imports nothing heavy."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from ..protocol.settings import LargestStep
from ..protocol.steps import GrammarFailed, GrammarReady, MemoryPlan, PoolingModel, PrepareGrammar, Step, StepDone


class PendingStep(Struct, frozen=True):
    """A step that has begun. Call `wait` once, from any thread, in the order of the steps."""

    wait: Callable[[], StepDone]
    computed: bool = False  # the step is complete: `wait` returns at once


class Stepper(Protocol):
    """Owns the worker's sequences and their device. One thread calls it.

    A step that raises is the last one: the state after it is unknown.
    """

    def begin_step(self, step: Step) -> PendingStep:
        """Compute or launch a step. If launched, the next one may begin before this one is waited for."""
        ...

    def prepare_grammar(self, order: PrepareGrammar, answer: Callable[[GrammarReady | GrammarFailed], None]) -> None:
        """Have a grammar built in another thread, which calls `answer`; sequences of later steps may name it."""
        ...

    def read_adapter(self, number: int, path: str) -> Callable[[], None]:
        """Read a LoRA adapter from its folder, in any one thread, beside the steps. Raises LoadError.

        What is returned adds it between two steps: sequences of later steps may name it.
        """
        ...

    def forget_adapter(self, number: int) -> None:
        """Give up the memory of an adapter, loaded or not. No sequence of a later step names it."""
        ...

    def progress(self) -> int:
        """A number that grows while a step computes, for any thread; constant where the device does not tell."""
        ...

    def close(self) -> None:
        """Stop its threads and wait for its device. Idempotent."""
        ...


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A model on its device, and facts about it that are not in the checkpoint."""

    stepper: Stepper
    device: str
    dtype: str
    kv_cache_dtype: str
    context_length: int
    largest_step: LargestStep
    memory: MemoryPlan
    model_context_length: int = 0  # where the files beside the checkpoint say another than its config.json
    pooling: PoolingModel | None = None  # None: it generates text
    table_bytes: int | None = None  # of the embedding, where it is stored in another way than dtype says
    libraries: tuple[str, ...]  # packages that the kernels depend on
