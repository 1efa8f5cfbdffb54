"""What the compiler made of the kernels with matrix products, when somebody last looked: kernel_counts.json.

Instructions of the inner loop, registers, shared memory and stages decide how fast such a kernel can be. They are kept
for each kind of form (a kernel with its tile, on a GPU), by the version of Triton, as the most of all forms of the
kind. A form that has more is worse than what was known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data/kernel_counts.json"
PAGE = "docs/gpu-kernel-counts.md"
ALLOWED = 1.05
MOST = ("registers", "spills", "shared")
# Constants that tell kinds apart, beside the type of what is stored.
NAMES = (
    "CODE", "HEAD_DIM", "ROPE_DIM", "WINDOWED", "SOFT_CAPPED", "STRICT", "GROUPS", "TALL", "EVEN_K", "PRECISE",
    "BLOCK_SCALES", "RANK", "PARTS", "BLOCK_M", "BLOCK_N", "BLOCK_K", "BLOCKS",
)  # fmt: skip
OPTIONAL = ("x_scales", "scales", "offsets", "minima")  # arguments that some forms of a kernel have, and their types
STORED = ("keys", "w")  # arguments whose type is named
INTRODUCTION = """# What the compiler makes of the GPU kernels

Every kernel with matrix products, by its tile, as `make kernels ARGS=--keep` compiled for sm_90 all that is launched
there; of several forms the most. *Loops*: instructions of each inner loop with products, in their order. Prefill has
one over pages that are seen whole and one over those with an edge, with a window one more in front. *Stages*: buffers
that a loop's loads are copied into ahead. A test compiles a sample anew with the newer Triton and fails where a count
is more than 5 % worse, a spill new, a stage fewer, or the number of loops another. Nothing here was measured on a GPU.

"""
Counts = dict[str, Any]  # Any: JSON values
Known = dict[str, Counts]  # by kind


def kind_of(row: Counts) -> str:
    """Of a row of compile_kernels.py, such as `decode_kernel sm_90 bf16 HEAD_DIM=128`."""
    types, constants = row["types"], row["constants"]
    stored = (re.findall(r"\*?(?:tensordesc<)?(\w+)", types[name])[0] for name in STORED if name in types)
    named = (
        name if constants[name] == "True" else f"{name}={constants[name]}"
        for name in NAMES
        if constants.get(name) not in (None, "False", "0", "None")
    )
    given = (f"{name}={types[name].lstrip('*')}" for name in OPTIONAL if types.get(name, "constexpr") != "constexpr")
    return " ".join((row["kernel"], f"sm_{row['capability']}", *stored, *named, *given))


def most_of_kinds(rows: Iterable[Counts]) -> Known:
    found: Known = {}
    for row in rows:
        if row.get("loops"):
            counts = {name: row[name] for name in (*MOST, "stages")} | {"loops": list(row["loops"])}
            known = found.setdefault(kind_of(row), counts)
            found[kind_of(row)] = {
                **{name: max(known[name], counts[name]) for name in MOST},
                "stages": min(known["stages"], counts["stages"]),
                "loops": [max(pair) for pair in zip(known["loops"], counts["loops"], strict=True)],
            }
    return dict(sorted(found.items()))


def worse(row: Counts, known: Known, *, every: bool) -> list[str]:
    """In what a row is more than 5 % worse than its kind was. `every`: kinds with loops must be known."""
    before = known.get(kind_of(row))
    if row.get("loops") is None or (before is None and not row["loops"]):
        return []  # its instructions were not counted, or it has no products
    if before is None:
        return [f"{kind_of(row)} is not in {FILE.name}: add it with --keep"] if every else []
    pairs: list[tuple[str, float, float]] = [(name, row[name], before[name]) for name in MOST]
    pairs += [("instructions of a loop", *pair) for pair in zip(row["loops"], before["loops"], strict=False)]
    found = [f"{now} {name}, {was} were known" for name, now, was in pairs if now > ALLOWED * was]
    if len(row["loops"]) != len(before["loops"]):
        found.append(f"{len(row['loops'])} loops with products, {len(before['loops'])} were known")
    if row["stages"] < before["stages"]:
        found.append(f"{row['stages']} stages, {before['stages']} were known")
    return found


def known_counts(version: str) -> Known:
    """Empty for a version of Triton that nobody has looked at."""
    return dict(_read().get(version, {}))


def keep(version: str, rows: Iterable[Counts]) -> None:
    """These rows, all that is launched of their kernels, replace what was known of those with this Triton."""
    every, now = _read(), most_of_kinds(rows)
    kernels = {kind.split()[0] for kind in now}
    others = {kind: one for kind, one in every.get(version, {}).items() if kind.split()[0] not in kernels}
    every[version] = dict(sorted((others | now).items()))
    parts = (
        f'"{version}": {{\n'
        + ",\n".join(f" {json.dumps(kind)}: {json.dumps(one)}" for kind, one in known.items())
        + "\n}"
        for version, known in sorted(every.items())
    )
    FILE.write_text("{" + ",\n".join(parts) + "}\n")


def page() -> str:
    """The whole page of the docs."""
    every = _read()
    kinds = sorted({kind for known in every.values() for kind in known if " sm_90 " in kind})
    heads = [f"{head}, {version}" for version in every for head in ("loops", "registers", "spills", "KB", "stages")]
    lines = [f"| kernel | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for kind in kinds:
        cells = [cell for known in every.values() for cell in _cells(known.get(kind))]
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


def _cells(one: Counts | None) -> list[str]:
    if one is None:
        return [""] * 5
    numbers = (one["registers"], one["spills"], round(one["shared"] / 1024), one["stages"])
    return [", ".join(map(str, one["loops"])), *map(str, numbers)]


def _read() -> dict[str, Known]:
    found: dict[str, Known] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


if __name__ == "__main__":
    print(page(), end="")
