"""The roofline of one machine as it was measured, and where a step stands under it. Pure arithmetic.

A step takes at least as long as its bytes from the level of memory that holds them, and as its operations in the units
that compute them (see speed.py, which bounds a device that nobody has measured). What it must read is the packed
weights and each sequence's cache; activations stay in the caches, and count for nothing.
"""

from msgspec import Struct

from ...protocol.steps import TokenWork
from ..checkpoint.spec import ModelSpec
from .speed import weights_read

ARITHMETIC = "arithmetic"


class MemoryLevel(Struct, frozen=True, kw_only=True):
    """A cache, or memory: bytes a second of one thread and of all, reading so many bytes again and again."""

    name: str
    read_bytes: int
    one_thread: float
    all_threads: float


class Unit(Struct, frozen=True, kw_only=True):
    """What multiplies one format: operations a second."""

    format: str
    instruction: str
    one_thread: float
    all_threads: float


class Ceilings(Struct, frozen=True, kw_only=True):
    threads: int
    levels: tuple[MemoryLevel, ...]  # memory is the last
    units: tuple[Unit, ...]

    def level_of(self, size: int) -> MemoryLevel:
        """The first level in which so many bytes stay from step to step."""
        return next((level for level in self.levels if size <= level.read_bytes), self.levels[-1])

    def unit(self, number_format: str) -> Unit:
        return next(unit for unit in self.units if unit.format == number_format)


class StepLoad(Struct, frozen=True, kw_only=True):
    """A step of `sequences`, each with so many new tokens after `context` others; one row of logits for each."""

    sequences: int
    tokens: int
    context: int

    @property
    def name(self) -> str:
        rows = f"{self.sequences} row{'s' if self.sequences > 1 else ''}"
        return rows if self.tokens == 1 else f"prompt {self.tokens}"


class StepWork(Struct, frozen=True, kw_only=True):
    bytes: int
    products: int  # operations with weights
    attention: int  # operations with the cache

    @property
    def operations(self) -> int:
        return self.products + self.attention


class Roof(Struct, frozen=True, kw_only=True):
    """The least seconds that the ceilings allow, and which of them decides: a level's name, or "arithmetic"."""

    seconds: float
    limit: str


def step_work(spec: ModelSpec, work: TokenWork, load: StepLoad) -> StepWork:
    """From the real shapes: `work` counts the packed weights, padding included."""
    new, before = load.tokens, load.context
    touched = seen = 0  # cached tokens of a sequence in all layers; keys that its new tokens look at
    for layer in spec.layers:
        window = layer.window or before + new
        touched += min(before, window - 1) + new
        seen += sum(min(position + 1, window) for position in range(before, before + new))
    key, value = (spec.head_dim,) * 2 if spec.latent is None else (spec.latent.row_dim, spec.latent.kv_rank)
    logits = work.operations - work.prompt_operations
    return StepWork(
        bytes=weights_read(work, load.sequences * new) + load.sequences * work.kv_bytes * touched // spec.num_layers,
        products=load.sequences * (new * work.prompt_operations + logits),
        attention=load.sequences * 2 * spec.num_heads * (key + value) * seen,
    )


def roof_of(work: StepWork, ceilings: Ceilings, weights: str, cache: str) -> Roof:
    """`weights` and `cache`: the formats whose units multiply by them, with all threads."""
    level = ceilings.level_of(work.bytes)
    reading = work.bytes / level.all_threads
    computing = work.products / ceilings.unit(weights).all_threads + work.attention / ceilings.unit(cache).all_threads
    return Roof(seconds=reading, limit=level.name) if reading > computing else Roof(seconds=computing, limit=ARITHMETIC)
