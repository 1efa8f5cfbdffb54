"""`python -m tests.fuzz NAME [--seconds S] [--corpus FOLDER]`: feed one parser with bytes, and stop at what breaks it.

With atheris installed (it is not among the tests' packages) the bytes follow what code they reach; without it they are
blind mutations of the seeds. What was tried is printed at the end; an input that breaks something is written down.
"""

import argparse
import logging
import random
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

INSTRUMENTED: Final = ("triolet.web", "triolet.actors.supervisor", "triolet.actors.tokenizer", "h11", "h2", "wsproto")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=Path("/tmp/triolet-fuzz"))
    options = parser.parse_args()
    logging.getLogger("triolet").propagate = False
    fuzzer: Any = import_module("atheris") if find_spec("atheris") else None  # Any: it has no types
    with fuzzer.instrument_imports(include=list(INSTRUMENTED)) if fuzzer else nullcontext():
        targets = import_module(".targets", __package__)
    target = targets.TARGETS[options.name]
    folder = options.corpus / options.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.SEEDS[target]):
        (folder / f"seed-{number}").write_bytes(seed)
    if fuzzer:
        found = options.corpus / f"{options.name}-"
        arguments = [f"-max_total_time={options.seconds}", f"-artifact_prefix={found}", "-max_len=4096", str(folder)]
        fuzzer.Setup([sys.argv[0], *arguments], target)
        fuzzer.Fuzz()
        return
    rng, until, tried = random.Random(), time.monotonic() + options.seconds, 0
    while time.monotonic() < until:
        data = targets.mutated(rng, rng.choice(targets.SEEDS[target]))
        try:
            target(data)
        except BaseException:
            (options.corpus / f"{options.name}-crash").write_bytes(data)
            raise
        tried += 1
    print(f"{options.name}: {tried} inputs, mutated blindly: atheris is not installed")


if __name__ == "__main__":
    main()
