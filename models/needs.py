"""What models need of memory, from their headers alone: a program that reads settings and writes a ModelNeeds for each.

It imports the kernels, which the process that asks must not. Sizes are those of the CPU.
"""

import sys
from pathlib import Path

import msgspec

from ..protocol.settings import BLOCK_SIZE, EngineSettings
from ..protocol.steps import ModelNeeds
from .checkpoint.open import open_checkpoint
from .encoder.checkpoint import makes_vectors
from .errors import LoadError
from .memory_plan import shortest_length

_ANY_AMOUNT = 1 << 60


def needs_of(settings: EngineSettings) -> ModelNeeds:
    """Of one model. What the cache holds at most is what --kv-cache-memory says, or what is of any use."""
    from .cpu.load import plan_on_cpu

    path = Path(settings.model)
    if makes_vectors(path):
        return _vector_needs(path, settings)
    checkpoint = open_checkpoint(path)
    sizes, memory = plan_on_cpu(checkpoint, settings, _ANY_AMOUNT)
    block = memory.kv_bytes // memory.num_blocks
    least = -(-shortest_length(settings, sizes.max_model_len) // BLOCK_SIZE) * block
    return ModelNeeds(
        fixed_bytes=memory.weights_bytes + memory.workspace_bytes + checkpoint.widened_bytes,
        kv_block_bytes=block,
        kv_least_bytes=least if settings.kv_cache_memory is None else memory.kv_bytes,
        kv_most_bytes=memory.kv_bytes,
        context_length=sizes.max_model_len,
    )


def _vector_needs(path: Path, settings: EngineSettings) -> ModelNeeds:
    """It keeps nothing between steps."""
    from .encoder.load import open_vector_checkpoint, plan_vectors

    checkpoint = open_vector_checkpoint(path)
    length, memory = plan_vectors(checkpoint, settings, _ANY_AMOUNT)
    return ModelNeeds(
        fixed_bytes=memory.weights_bytes + memory.workspace_bytes + memory.kv_bytes + checkpoint.widened_bytes,
        kv_block_bytes=0,
        kv_least_bytes=0,
        kv_most_bytes=0,
        context_length=length,
    )


def main() -> None:
    """Settings come as JSON on standard input. A model that cannot run ends it with a sentence on standard error."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=list[EngineSettings])
    found: list[ModelNeeds] = []
    for settings in asked:
        try:
            found.append(needs_of(settings))
        except LoadError as error:
            sys.exit(f"{settings.model}: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
