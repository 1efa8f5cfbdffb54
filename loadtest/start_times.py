"""How long a model takes from the command to READY, beside a plain read of its file, and what memory that takes.

    python -m triolet.loadtest.start_times FOLDER [--options "--dtype bfloat16"] [--rounds 3] [--cache FOLDER]

A round has five starts and two reads, each with the model's file in the page cache ("warm") or out of it ("cold"):
first starts that pack the weights, and second starts that read them as the first with --keep-packed-weights kept them,
which it does after READY ("keeping").
A plain read is one thread's, 8 MiB at a time. Kernels are compiled before, in a start that does not count, and are kept
in --cache; libraries stay in the page cache. Prints JSON: every round, the medians, and the memory lines of the report.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from .machine import busy_share, machine, versions
from .process import TRIOLET, serving

CHUNK: Final = 8 << 20
KEEP: Final = "--keep-packed-weights"


def evict(paths: Sequence[Path]) -> None:
    """Write what is dirty and take the files out of the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(paths: Sequence[Path]) -> float:
    """Seconds to read the files to their ends."""
    buffer, began = bytearray(CHUNK), perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return perf_counter() - began


def start(command: Sequence[str], done: Callable[[], bool] = lambda: True) -> tuple[float, str]:
    """Seconds to READY, and what the report says of memory. The server is stopped when all is `done`."""
    with tempfile.TemporaryFile() as errors:
        began = perf_counter()
        with serving(command, errors):
            seconds = perf_counter() - began
            while not done():
                sleep(0.1)
        errors.seek(0)
        found = re.search(r"^ *memory +(.+)$", errors.read().decode(), re.MULTILINE)
    return seconds, found[1] if found else ""


def run(model: Path, options: str, rounds: int, cache: Path) -> dict[str, object]:
    os.environ["XDG_CACHE_HOME"] = str(cache)
    files = sorted(model.glob("*.safetensors")) if model.is_dir() else [model]
    kept = cache / "triolet" / "weights"

    def is_kept() -> bool:
        return any(not path.name.startswith(".") for path in kept.iterdir())

    command = [TRIOLET, "serve", str(model), "--port", "0", *shlex.split(options)]
    start(command)
    busy = busy_share()
    found: list[dict[str, float]] = []
    memory: dict[str, str] = {}
    for _ in range(rounds):
        shutil.rmtree(kept, ignore_errors=True)
        one: dict[str, float] = {}
        evict(files)
        one["read, cold"] = read(files)
        one["read, warm"] = read(files)
        evict(files)
        one["first start, cold"], memory["first start"] = start(command)
        one["first start, warm"], _ = start(command)
        evict(files)
        began = perf_counter()
        one["first start that keeps, cold"], memory["first start that keeps"] = start([*command, KEEP], is_kept)
        one["keeping"] = perf_counter() - began - one["first start that keeps, cold"]
        evict(list(kept.iterdir()))
        one["second start, cold"], memory["second start"] = start([*command, KEEP])
        one["second start, warm"], _ = start([*command, KEEP])
        one["first start / read, cold"] = one["first start, cold"] / one["read, cold"]
        one["first start / read, warm"] = one["first start, warm"] / one["read, warm"]
        found.append({name: round(value, 3) for name, value in one.items()})
    return {
        "cpu": machine().cpu, "versions": versions(), "busy_before": round(busy, 3),
        "file_bytes": sum(path.stat().st_size for path in files), "memory": memory, "rounds": found,
        "medians": {name: statistics.median(one[name] for one in found) for name in found[0]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--options", default="", help="of `triolet serve`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="for kernels and kept weights; emptied of the latter")
    values = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = run(values.model, values.options, values.rounds, values.cache or Path(temporary))
    print(json.dumps({"options": values.options} | result, indent=1))


if __name__ == "__main__":
    main()
