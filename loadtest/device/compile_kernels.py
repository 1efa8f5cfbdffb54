"""Compile all that serving may launch ahead of time, with no GPU: `python -m triolet.loadtest.device.compile_kernels`.

Prints registers, spills, shared memory and instructions per target, and exits with 1 where a kernel does not compile,
falls short of what its row promises, or needs more than it did (kernel_counts.py). `make kernels` runs it for every
target, and for AMD's gfx942 as far as that goes (compile_amd.py).
"""

import argparse
import json
import multiprocessing
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from triolet.kernels.gpu.compiling import SHARED_LIMIT, Specialisation, compile_for, faults
from triolet.loadtest.device.compile_amd import GFX942, compile_for_amd, for_amd, sample_of, summary
from triolet.loadtest.device.compile_catalogue import every_specialisation
from triolet.loadtest.device.kernel_counts import keep, known_counts, worse

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "BLOCKS", "STAGES", "TALL", "SUM")  # what a launch table says of a product
QUICK = "a form of every tile of a product, two of other kernels; count instructions only where a check needs them"
_catalogue: list[Specialisation] = []  # made before the processes are forked, which find it here


def compiled(place: int, quick: bool) -> dict[str, Any]:  # Any: a JSON object
    """One specialisation, by its place in the catalogue; `quick` counts instructions only where a check needs them."""
    specialisation = _catalogue[place]
    form = specialisation.form
    row: dict[str, Any] = {
        "operation": form.operation,
        "kernel": form.kernel.fn.__name__,
        "capability": specialisation.capability,
        "constants": {name: str(value) for name, value in form.constants},
        "types": form.types,
    }
    counted = not quick or bool(specialisation.uses or specialisation.avoids)
    try:
        if specialisation.capability == GFX942:
            code = compile_for_amd(form)
        else:
            code = compile_for(form, specialisation.capability, count_always=counted)
    except Exception as error:  # whatever Triton and ptxas raise: it is this row's result
        return row | {"faults": [f"does not compile: {type(error).__name__}: {str(error).strip().splitlines()[-1]}"]}
    used = {name: getattr(code, name) for name in ("registers", "spills", "shared", "warps", "loops", "stages")}
    counts = dict(code.instructions)
    return row | used | {"instructions": counts, "faults": faults(specialisation, code)}


def jobs(only: str, capabilities: list[int], *, quick: bool = False) -> list[int]:
    """Places in the catalogue. `quick`: a form of every tile of a product on every GPU, and of each other kernel one
    for each major version; drawn anew."""
    kernels: dict[tuple[object, ...], list[int]] = {}
    for place, specialisation in enumerate(_catalogue):
        form, capability = specialisation.form, specialisation.capability
        if only in ("", form.operation) and capability in capabilities:
            tile = (capability, form.num_warps, *((name, value) for name, value in form.constants if name in TILE))
            kind = (form.operation, form.kernel.fn.__name__, tile if form.operation == "gemm" else capability // 10)
            kernels.setdefault(kind, []).append(place)
    return sorted(place for places in kernels.values() for place in (random.sample(places, 1) if quick else places))


def table(rows: list[dict[str, Any]]) -> Table:
    heads = ("registers", "spills", "shared", "loops", "stages")
    shown = Table("operation", "kernel", "sm", "constants", *heads, "instructions", "faults")
    for row in rows:
        counts = {name: n for name, n in row.get("instructions", {}).items() if n}
        shown.add_row(
            row["operation"],
            row["kernel"],
            str(row["capability"]),
            " ".join(f"{name}={value}" for name, value in row["constants"].items()),
            *(str(row.get(head, "–")) for head in heads),
            " ".join(f"{name} {n}" for name, n in counts.items()),
            "; ".join(row["faults"]),
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m triolet.loadtest.device.compile_kernels", description=__doc__)
    parser.add_argument("--only", default="", help="one operation, such as paged_attention")
    parser.add_argument(
        "--capability", type=int, action="append", help="80, 86, 89, 90 or 942 (AMD's gfx942); all unless given"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--processes", type=int, default=1, help="compile so many at a time (1)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="what is compiled now, but for what is at fault, is what later runs are compared with",
    )
    parser.add_argument("--quick", action="store_true", help=QUICK)
    options = parser.parse_args()
    if options.keep and (options.quick or options.capability):
        parser.error("--keep needs every form: give neither --quick nor --capability")
    _catalogue.extend(every_specialisation(quick=options.quick))
    amd = for_amd(_catalogue)
    _catalogue.extend(sample_of(amd) if options.quick else amd)
    todo = jobs(options.only, options.capability or [*SHARED_LIMIT, GFX942], quick=options.quick)
    if not todo:
        sys.exit(f"no kernel to compile: --only {options.only!r} names no operation of the catalogue")
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("fork")) as pool:
        results = pool.map(partial(compiled, quick=options.quick), todo)
        rows = list(track(results, "compiling", len(todo), console=Console(stderr=True)))
    if options.keep:
        sound = [row for row in rows if not row["faults"]]
        keep(_version(), sound)
        print(f"kept the counts of {len(sound)} forms; {len(rows) - len(sound)} at fault were left out")
    known = known_counts(_version())
    if not known:
        print(f"No counts are known for Triton {_version()}: loops are not compared.")
    for row in rows if known else ():
        # A sample has forms for the newest GPU of a major version that are otherwise compiled for the oldest.
        row["faults"] += worse(row, known, every=not options.quick)
    Console(width=200).print(table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    for line in summary(rows, _catalogue):
        print(line)
    wrong = sum(bool(row["faults"]) for row in rows)
    print(f"{len(rows)} compiled, {wrong} at fault, Triton {_version()}")
    sys.exit(1 if wrong else 0)


def _version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    main()
