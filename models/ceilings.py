"""Measures what this machine's cores reach: bytes from each level of memory, dot products in each format."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ..kernels.threads.cores import own_cores
from .dot_speed import UNIT_FORMATS, instruction, operations_per_second
from .host import CPUS, available_memory
from .plan.roofline import Ceilings, MemoryLevel, Unit
from .read_speed import bytes_per_second

LEAST_READ: Final = 1_000_000_000  # bytes
TIMES_THE_CACHE: Final = 8  # for each of its parts is then as large as the last level
MOST_OF_MEMORY: Final = 0.25  # of what is free
ROUNDS: Final = 25  # so many that one of them meets no other program
_CACHES: Final = ("L2", "L3")
_FILES: Final = ("level", "type", "size", "shared_cpu_list")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20}

Tell = Callable[[str, int, int], None]  # what is measured now, how much is done, of how much


def caches_of(cores: Sequence[int], cpus: Path = CPUS) -> dict[str, int]:
    """Bytes of each level that these cores have together; empty where the system does not tell."""
    found: dict[str, dict[tuple[str, str], int]] = {}
    for core in cores:
        for folder in sorted((cpus / f"cpu{core}/cache").glob("index*")):
            try:
                level, kind, size, shared = ((folder / name).read_text().strip() for name in _FILES)
            except OSError:  # a hypervisor's that does not say all of it
                continue
            if kind != "Instruction" and f"L{level}" in _CACHES:
                found.setdefault(f"L{level}", {})[level, shared] = int(size[:-1]) * _UNITS[size[-1]]
    return {name: sum(found[name].values()) for name in _CACHES if name in found}


def measure_ceilings(threads: int, read_bytes: int | None, tell: Tell) -> Ceilings:
    """Of one thread and of `threads`. `read_bytes`: of the memory that is read; None: chosen by the caches."""
    counts, cores = sorted({1, threads}), own_cores()
    caches = caches_of(cores[:threads])
    chosen = max(LEAST_READ, TIMES_THE_CACHE * max(caches.values(), default=0))
    size = min(chosen, int(available_memory() * MOST_OF_MEMORY)) if read_bytes is None else read_bytes
    total, done = (len(caches) + 1 + len(UNIT_FORMATS)) * len(counts), 0

    def each(what: str, measure: Callable[[int], float]) -> list[float]:
        nonlocal done
        rates: list[float] = []
        for count in counts:
            tell(what, done, total)
            rates.append(measure(count))
            done += 1
        return rates

    def read(name: str, count: int) -> float:
        if name == "memory":
            return bytes_per_second(size, count, rounds=ROUNDS)
        return bytes_per_second(half_of(name, count), count, cached=True, rounds=ROUNDS)

    def half_of(name: str, count: int) -> int:
        """Other data have their part of a cache too."""
        return caches_of(cores[:count])[name] // 2

    levels: list[MemoryLevel] = []
    for name in (*caches, "memory"):
        rates = each(f"reading {name}", partial(read, name))
        amount = size if name == "memory" else half_of(name, threads)
        levels.append(MemoryLevel(name=name, read_bytes=amount, one_thread=rates[0], all_threads=rates[-1]))
    units: list[Unit] = []
    for unit in UNIT_FORMATS:
        rates = each(f"multiplying {unit}", partial(operations_per_second, unit))
        units.append(Unit(format=unit, instruction=instruction(unit), one_thread=rates[0], all_threads=rates[-1]))
    tell("measured", total, total)
    return Ceilings(threads=threads, levels=tuple(levels), units=tuple(units))
