"""What each of several models gets of the machine: threads, and of --memory a part. Pure.

A model takes what its weights and working arrays need, and room for its KV cache: at least one sequence, and half of
what the weights take if there is so much. If all models fit together, what is left is divided among their caches.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from msgspec import structs

from ...protocol.settings import BLOCK_SIZE, ServeSettings
from ...protocol.steps import ModelNeeds

GIB: Final = 1 << 30


class DoesNotFitTogether(Exception):
    """The memory is not enough; the message has the figures and the remedy."""


class Parts(NamedTuple):
    """By model, in the order in which they were given. Without --memory all are loaded, and sizes are not known."""

    settings: dict[str, ServeSettings]  # of each model's engine
    at_start: list[str]  # the models to load at once; the others when a request names them
    budget: int | None = None
    sizes: Mapping[str, int] = {}  # bytes that each takes when it is loaded
    context_lengths: Mapping[str, int] = {}


def divide(settings: ServeSettings, cores: int, needs: Sequence[ModelNeeds] = ()) -> Parts:
    """`needs`, of each model, are used with --memory only. Raises DoesNotFitTogether."""
    names, budget = [model.name for model in settings.models], settings.memory
    if budget is None:
        return Parts(
            _settings_of_each(settings, cores, len(names), [settings.engine.kv_cache_memory] * len(names)), names
        )
    for name, need in zip(names, needs, strict=True):
        least = need.fixed_bytes + need.kv_least_bytes
        if least > budget:
            raise DoesNotFitTogether(
                f"--memory {_gib(budget)} is less than {name} needs alone: {_gib(need.fixed_bytes)} for weights "
                f"and working memory, and {_gib(need.kv_least_bytes)} of KV cache; raise it to {_gib(least)}, or "
                "quantise the models"
            )
    caches = cache_sizes(budget, needs)
    sizes = [need.fixed_bytes + cache for need, cache in zip(needs, caches, strict=True)]
    at_once = sum(total <= budget for total in accumulate(sorted(sizes)))
    at_start, free = list[str](), budget
    for name, size in zip(names, sizes, strict=True):
        if size <= free:
            at_start.append(name)
            free -= size
    lengths = [
        min(need.context_length, cache // need.kv_block_bytes * BLOCK_SIZE)
        for need, cache in zip(needs, caches, strict=True)
    ]
    return Parts(
        _settings_of_each(settings, cores, at_once, caches),
        at_start,
        budget,
        dict(zip(names, sizes, strict=True)),
        dict(zip(names, lengths, strict=True)),
    )


def cache_sizes(budget: int, needs: Sequence[ModelNeeds]) -> list[int]:
    """Bytes for the KV cache of each model. Each model alone fits into the budget."""
    caches = [
        min(need.kv_most_bytes, max(need.kv_least_bytes, need.fixed_bytes // 2), budget - need.fixed_bytes)
        for need in needs
    ]
    fixed = sum(need.fixed_bytes for need in needs)
    left = max(0, budget - fixed - sum(caches))
    return [
        min(need.kv_most_bytes, cache + left * need.fixed_bytes // fixed)
        for need, cache in zip(needs, caches, strict=True)
    ]


def to_unload(wanted: int, budget: int, loaded: Iterable[tuple[str, int]]) -> list[str]:
    """The models to unload, the first ones of `loaded`, until `wanted` bytes are free."""
    sizes = list(loaded)
    free, gone = budget - sum(size for _, size in sizes), list[str]()
    for model, size in sizes:
        if free >= wanted:
            break
        gone.append(model)
        free += size
    return gone


def _settings_of_each(
    settings: ServeSettings, cores: int, at_once: int, caches: Sequence[int | None]
) -> dict[str, ServeSettings]:
    """The threads are divided among the models that may be loaded together, and each gets at least one.

    With more threads than cores, those that run wait for those that do not.
    """
    threads = max(1, (settings.engine.threads or cores) // at_once)
    return {
        model.name: structs.replace(
            settings,
            engine=structs.replace(settings.engine, model=model.path, threads=threads, kv_cache_memory=cache),
            served_model_name=model.name,
            models=(),
            aliases=(),
            memory=None,
        )
        for model, cache in zip(settings.models, caches, strict=True)
    }


def _gib(size: int) -> str:
    """Rounded up, so that it can be passed back."""
    return f"{-(-size * 100 // GIB) / 100:.2f}GiB"
