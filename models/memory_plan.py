"""The memory plan: how much goes to weights, working arrays and KV blocks, decided before anything is allocated.

Pure arithmetic on byte counts; refusals name the numbers and the flags that change them.
"""

from ..protocol.settings import BLOCK_SIZE, MIB, EngineSettings
from ..protocol.steps import MemoryPlan
from .errors import DoesNotFit, UnsupportedDevice

GIB = 1 << 30
SHARE = 0.5  # of the memory left by weights and working arrays: the machine needs the rest
MOST = 0.9  # of it, if one sequence of full length needs more than SHARE
SHORTEST = 1024  # tokens: a context that is chosen instead of the model's is never shorter


def context_length(settings: EngineSettings, max_position: int) -> int:
    """The longest sequence in tokens; refuses counts below 1 and lengths above the model's."""
    for name in ("max_model_len", "max_running", "max_step_tokens", "threads"):
        value: int | None = getattr(settings, name)
        if value is not None and value < 1:
            raise UnsupportedDevice(f"--{name.replace('_', '-')} {value}: must be at least 1")
    length = settings.max_model_len or max_position
    if length > max_position:
        raise DoesNotFit(f"--max-model-len {length} is beyond the model's context of {max_position} tokens: lower it")
    return length


def shortest_length(settings: EngineSettings, length: int) -> int:
    """What `length` may shrink to if less memory is there: not at all if --max-model-len was given."""
    return length if settings.max_model_len is not None else min(length, SHORTEST)


def choose_num_blocks(
    *,
    available: int,
    fixed_bytes: int,
    block_bytes: int,
    max_model_len: int,
    shortest: int,
    max_running: int,
    kv_cache_memory: int | None,
) -> int:
    """KV blocks: the requested number, or a share of what weights and working arrays (`fixed_bytes`) leave free.

    The default is at most what `max_running` sequences of full length need: few are that long, so the rest keeps
    prefixes. The blocks hold a sequence of `max_model_len` tokens, or at least one of `shortest` tokens: then the
    caller lowers the length.
    """
    one_sequence = -(-max_model_len // BLOCK_SIZE)
    free = available - fixed_bytes
    if free < block_bytes:
        raise DoesNotFit(
            f"the model needs {size(fixed_bytes)} for weights and working memory, but only {size(available)} are "
            "available: use --quantize int8 or a smaller model, or lower --max-step-tokens"
        )
    left = f"left of {size(available)} after {size(fixed_bytes)} for weights and working memory"
    if kv_cache_memory is not None:
        return blocks_in(kv_cache_memory, free, left, block_bytes, shortest)
    most = int(free * MOST) // block_bytes
    if (least := -(-shortest // BLOCK_SIZE)) > most:
        raise DoesNotFit(
            f"one sequence of {shortest} tokens needs {size(least * block_bytes)} of KV cache, but "
            f"{size(most * block_bytes)} are {left}: pass --max-model-len {max(1, most * BLOCK_SIZE)} or less"
        )
    useful = max_running * one_sequence
    return max(min(one_sequence, most), min(useful, int(free * SHARE) // block_bytes))


def blocks_in(kv_cache_memory: int, free: int, left: str, block_bytes: int, max_model_len: int) -> int:
    """The blocks that fit --kv-cache-memory; refused if it exceeds the free memory or is too small for a sequence."""
    if kv_cache_memory > free:
        raise DoesNotFit(
            f"--kv-cache-memory {size(kv_cache_memory)} does not fit: {size(free)} are {left}; "
            f"lower it to {size(free)} at most"
        )
    blocks, one_sequence = kv_cache_memory // block_bytes, -(-max_model_len // BLOCK_SIZE)
    if blocks < one_sequence:
        raise DoesNotFit(
            f"--kv-cache-memory {size(kv_cache_memory)} holds {blocks * BLOCK_SIZE} tokens, but one sequence may "
            f"have {max_model_len}: raise it to {size(one_sequence * block_bytes)} or pass "
            f"--max-model-len {max(1, blocks * BLOCK_SIZE)}"
        )
    return blocks


def plan_of(blocks: int, block_bytes: int, max_model_len: int, *, weights: int, workspace: int) -> MemoryPlan:
    """The plan that the worker reports."""
    return MemoryPlan(
        weights_bytes=weights,
        workspace_bytes=workspace,
        kv_bytes=blocks * block_bytes,
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        sequences_at_full_length=blocks / -(-max_model_len // BLOCK_SIZE),
    )


def size(count: int) -> str:
    """A number of bytes in the command line's notation, rounded up so that it can be passed back."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if count >= 10 * unit:
            return f"{-(-count // unit)}{name}"
    return f"{max(0, -(-count // 1024))}KiB"
