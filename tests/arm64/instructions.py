"""How many instructions the inner loops of products have on AArch64, as JSON: what LLVM makes of them, on any machine.

    python -m tests.arm64.instructions

They are counts, not speed. Each is for 16 channels times 32 inputs of so many rows; loads, prefetches and the loop's
own instructions are among them. The second number is of those that use the stack.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from typing import Final
from unittest.mock import patch

from triolet.kernels.simd import target

from ..kernels.test_arm import NEON, assembly, inner_loop

CPUS: Final = {"dotprod": NEON | {"dotprod"}, "i8mm and bf16": NEON | {"dotprod", "i8mm", "bf16"}}
LOOPS_FOR_32_INPUTS: Final = {"int8": 1, "int4": 1, "bfloat16": 2}


def counted(features: frozenset[str], weight_format: str, rows: int) -> tuple[int, int]:
    with patch.object(target, "features", lambda: features):
        loop = inner_loop(assembly(features, weight_format, rows))
    found = re.findall(r"^\t([a-z][^\n]*)", loop, re.MULTILINE)
    times = LOOPS_FOR_32_INPUTS[weight_format]
    return times * len(found), times * sum("[sp" in instruction for instruction in found)


def main() -> None:
    counts = {
        cpu: {kind: {rows: counted(features, kind, rows) for rows in (1, 2, 4)} for kind in LOOPS_FOR_32_INPUTS}
        for cpu, features in CPUS.items()
    }
    print(json.dumps({"llvmlite": version("llvmlite"), "counts": counts}, indent=1))


if __name__ == "__main__":
    main()
