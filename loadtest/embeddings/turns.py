"""Embeddings of Triolet and of other libraries in turn, on the same texts: medians, and ratios within a turn.

    python -m triolet.loadtest.embeddings.turns FOLDER --python VENV/bin/python --onnx FILE.onnx
        [--variant "int8=--quantize int8"] [--rounds 3]

Each turn runs each of ours and each library once, in a process of its own, never two at once; bench.py does the timing.
VENV has sentence-transformers and onnxruntime; loadtest/peers/export_onnx.py makes FILE.onnx. Prints JSON: every turn's
texts per second, the medians, and the medians of the turns' ratios, ours over theirs.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from ..machine import busy_share, machine, versions
from ..process import TRIOLET, serving

LOADTEST: Final = Path(__file__).parents[1]
PROGRAM: Final = "embeddings.bench"  # beside Triolet's own packages, which the libraries' Python need not have
SHOW_VERSIONS: Final = (
    "import importlib.metadata as m, json, sys; print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
)
LIBRARIES: Final = ("sentence-transformers", "onnxruntime", "torch", "transformers")


def of_library(python: str, threads: int, *arguments: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(LOADTEST), "OMP_NUM_THREADS": str(threads)}
    command = [python, "-m", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["texts_per_second"])


def of_ours(folder: str, threads: int, options: str) -> float:
    command = [TRIOLET, "serve", folder, "--port", "0", "--threads", str(threads), *shlex.split(options)]
    with tempfile.TemporaryFile() as errors, serving(command, errors) as server:
        return of_library(sys.executable, threads, "server", f"http://127.0.0.1:{server.port}")


def run(engines: dict[str, Callable[[], float]], rounds: int) -> list[dict[str, float]]:
    """Texts per second by engine, in each turn; every other turn runs in reverse."""
    turns = list[dict[str, float]]()
    for turn in range(rounds):
        names = list(engines) if turn % 2 == 0 else list(reversed(engines))
        turns.append({name: engines[name]() for name in names})
    return turns


def ratios_of(turns: list[dict[str, float]], ours: list[str]) -> dict[str, float]:
    """Medians of the turns' ratios."""
    theirs = [name for name in turns[0] if name not in ours]
    return {
        f"{own} / {other}": round(statistics.median(turn[own] / turn[other] for turn in turns), 3)
        for own in ours
        for other in sorted(theirs)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--python", required=True, help="of the libraries' virtual environment")
    parser.add_argument("--onnx", help="an int8 file of the same model")
    parser.add_argument("--variant", action="append", help="NAME=OPTIONS of `triolet serve`; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    values = parser.parse_args()
    variants = dict(text.split("=", 1) for text in values.variant or ["float32=", "int8=--quantize int8"])
    engines: dict[str, Callable[[], float]] = {
        f"triolet {name}": partial(of_ours, values.folder, values.threads, options)
        for name, options in variants.items()
    }
    ours = list(engines)
    library = partial(of_library, values.python, values.threads)
    engines["sentence-transformers"] = partial(library, "sentence-transformers", values.folder)
    if values.onnx:
        engines["onnxruntime int8"] = partial(library, "onnxruntime", values.folder, values.onnx)
    busy = busy_share()
    turns = run(engines, values.rounds)
    about = subprocess.run([values.python, "-c", SHOW_VERSIONS, *LIBRARIES], stdout=subprocess.PIPE, check=True)
    result = {
        "command": shlex.join(["python", "-m", "triolet.loadtest.embeddings.turns", *sys.argv[1:]]),
        "cpu": machine().cpu, "threads": values.threads, "busy_before": round(busy, 3),
        "versions": versions() | json.loads(about.stdout), "unit": "texts per second", "turns": turns,
        "medians": {name: statistics.median(turn[name] for turn in turns) for name in engines},
        "ratios": ratios_of(turns, ours),
    }  # fmt: skip
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
