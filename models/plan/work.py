"""What one token costs a device: bytes that it reads, operations that it computes. From a spec and a memory plan."""

from ...protocol.steps import MemoryPlan, TokenWork
from ..checkpoint.spec import ModelSpec


def work_of(
    spec: ModelSpec, memory: MemoryPlan, *, dtype: str, table_bytes: int | None = None, shared_table: bool = False
) -> TokenWork:
    """`shared_table`: the embedding and the output layer are one matrix in memory; else the embedding is beside it, of
    `table_bytes`, or as `dtype` says.

    Of the embedding a token reads one row, so its table counts for memory and not here.
    """
    table = spec.vocab_size * spec.hidden_size
    apart = table * (4 if dtype.startswith("float32") else 2) if table_bytes is None else table_bytes
    apart = 0 if shared_table else apart
    computed = spec.active_parameters - (0 if spec.tied_embeddings else table)
    read = max(1, memory.weights_bytes - apart)
    return TokenWork(
        weight_bytes=read * spec.active_parameters // spec.parameters,
        all_weight_bytes=read,
        kv_bytes=memory.kv_bytes // (memory.num_blocks * memory.block_size),
        operations=2 * computed,
        prompt_operations=2 * max(1, computed - table),
    )
