"""The memory plan: how much goes to weights, working arrays and KV blocks, decided before anything is allocated.

Pure arithmetic over byte counts; the refusals name the numbers and the flags that would change them.
"""

from collections.abc import Mapping

from msgspec import Struct

from .errors import DoesNotFit, UnsupportedDevice

MIB = 1 << 20
GIB = 1 << 30
SHARE = 0.5  # of what weights and working arrays leave free: the machine has other uses for the rest
MOST = 0.9  # of it, if one sequence of full length needs more than SHARE


class Plan(Struct, frozen=True, kw_only=True):
    """What the worker allocates; nothing for KV is allocated afterwards."""

    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    num_blocks: int
    block_size: int
    max_model_len: int
    max_step_tokens: int
    max_logit_rows: int
    threads: int
    sequences_at_full_length: float


def context_length(max_position: int, max_model_len: int | None, counts: Mapping[str, int | None]) -> int:
    """The longest sequence in tokens; refuses counts (by their flag's name) below 1 and lengths beyond the model's."""
    for name, value in {"max-model-len": max_model_len, **counts}.items():
        if value is not None and value < 1:
            raise UnsupportedDevice(f"--{name} {value}: must be at least 1")
    length = max_model_len or max_position
    if length > max_position:
        raise DoesNotFit(f"--max-model-len {length} is beyond the model's context of {max_position} tokens: lower it")
    return length


def choose_num_blocks(
    *,
    available: int,
    fixed_bytes: int,
    block_bytes: int,
    block_size: int,
    max_model_len: int,
    max_running: int,
    kv_cache_memory: int | None,
) -> int:
    """KV blocks: what was asked for, or a share of what `fixed_bytes` (weights, working arrays) leaves of `available`.

    By default no more than `max_running` sequences of full length could use, and as much again for cached prefixes.
    """
    one_sequence = -(-max_model_len // block_size)
    free = available - fixed_bytes
    if free < block_bytes:
        raise DoesNotFit(
            f"the model needs {size(fixed_bytes)} for weights and working memory, but only {size(available)} are "
            "available: use --quantize int8 or a smaller model, or lower --max-step-tokens"
        )
    if kv_cache_memory is not None:
        blocks = kv_cache_memory // block_bytes
        if kv_cache_memory > free:
            raise DoesNotFit(
                f"--kv-cache-memory {size(kv_cache_memory)} does not fit: {size(free)} are left of {size(available)} "
                f"after {size(fixed_bytes)} for weights and working memory; lower it to {size(free)} at most"
            )
        if blocks < one_sequence:
            raise DoesNotFit(
                f"--kv-cache-memory {size(kv_cache_memory)} holds {blocks * block_size} tokens, but one sequence may "
                f"have {max_model_len}: raise it to {size(one_sequence * block_bytes)} or pass "
                f"--max-model-len {max(1, blocks * block_size)}"
            )
        return blocks
    most = int(free * MOST) // block_bytes
    if one_sequence > most:
        raise DoesNotFit(
            f"one sequence of {max_model_len} tokens needs {size(one_sequence * block_bytes)} of KV cache, but "
            f"{size(most * block_bytes)} are left of {size(available)} after {size(fixed_bytes)} for weights and "
            f"working memory: pass --max-model-len {max(1, most * block_size)} or less"
        )
    useful = 2 * max_running * one_sequence
    return max(one_sequence, min(useful, int(free * SHARE) // block_bytes))


def size(count: int) -> str:
    """A number of bytes as the command line writes it: rounded up, so that it can be passed back."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if count >= 10 * unit:
            return f"{-(-count // unit)}{name}"
    return f"{max(0, -(-count // 1024))}KiB"
