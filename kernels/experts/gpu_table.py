"""How the experts of each weight format are multiplied, by device and by the rows that an expert has on average.

A launch is gemm/gpu_table.py's `Few` without a split. Its block_m is also that of the plan, which both products of a
layer share: so formats that may meet in one layer, all but float8, have the same blocks for the same rows. `STRICT` is
the one launch for any number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..gemm.gpu_table import FIXED, Few, LinearFormat
from ..gpu.table import LaunchRow, Table, choose

COMBINE_BLOCK, COMBINE_WARPS = 1024, 4  # channels of a program


def _row(
    up_to: int | None, block_m: int, block_n: int, block_k: int, warps: int, stages: int, registers: str, *,
    tall: bool = False,
) -> LaunchRow[Few]:  # fmt: skip
    """`registers`: as compiled by Triton 3.6 and 3.9; of bfloat16's 32 rows by 3.9 alone.

    No form spills on sm_90. On sm_80 some with groups of 16 to 64 do (compile_catalogue.py says how much, and why).
    """
    evidence = f"compiled: {registers} registers; not measured yet"
    return LaunchRow(up_to, Few(block_m, block_n, block_k, 0, 1, warps, stages, tall), evidence)


_W4_80 = (
    _row(16, 16, 64, 128, 4, 4, "66-122"), _row(32, 32, 128, 128, 4, 4, "168-210"),
    _row(64, 64, 128, 128, 8, 3, "143-202"), _row(None, 128, 128, 128, 8, 3, "140-204", tall=True),
)  # fmt: skip
_W4_90 = (
    _row(16, 16, 64, 128, 4, 5, "64-96"), _row(32, 32, 128, 128, 4, 4, "144-186"),
    _row(64, 64, 128, 128, 8, 3, "120-175"), _row(None, 128, 128, 128, 8, 3, "160-174", tall=True),
)  # fmt: skip
_W8_80 = (
    _row(16, 16, 64, 64, 4, 5, "46-56"), _row(32, 32, 128, 64, 4, 4, "94-134"), _row(64, 64, 128, 64, 8, 4, "80-126"),
    _row(None, 128, 128, 64, 8, 3, "130-182"),
)  # fmt: skip
_W8_90 = (
    _row(16, 16, 64, 64, 4, 5, "48-54"), _row(32, 32, 128, 64, 4, 4, "96-133"), _row(64, 64, 128, 64, 4, 4, "132-252"),
    _row(None, 128, 128, 64, 8, 4, "124-247"),
)  # fmt: skip
_FP8_89 = (
    _row(16, 16, 64, 128, 4, 4, "56"), _row(64, 64, 64, 128, 4, 4, "140"), _row(None, 128, 128, 128, 8, 3, "176"),
)  # fmt: skip
_FP8_90 = (
    _row(16, 16, 64, 128, 4, 5, "48"), _row(64, 64, 64, 128, 4, 4, "124-125"),
    _row(None, 128, 128, 128, 8, 3, "215-216"),
)  # fmt: skip
_BF16_80 = (
    _row(16, 16, 64, 128, 4, 4, "72"), _row(32, 32, 64, 64, 4, 4, "64"), _row(64, 64, 64, 64, 4, 4, "96"),
    _row(None, 128, 128, 64, 8, 3, "174"),
)  # fmt: skip
_BF16_90 = (
    _row(16, 16, 64, 128, 4, 4, "55"), _row(32, 32, 64, 64, 4, 4, "48"), _row(64, 64, 64, 64, 4, 4, "72"),
    _row(None, 128, 128, 64, 8, 4, "114"),
)  # fmt: skip
_FP32 = (_row(None, 32, 64, 16, 4, 2, "80-96"),)

TABLES: Mapping[LinearFormat, Table[Few]] = {
    "w4a16": {80: _W4_80, 90: _W4_90},
    "w8a16": {80: _W8_80, 90: _W8_90},
    "fp8": {89: _FP8_89, 90: _FP8_90},
    "bf16": {80: _BF16_80, 90: _BF16_90},
    "fp32": {80: _FP32},
}
STRICT: Mapping[LinearFormat, Table[Few]] = {
    kind: {capability: (LaunchRow(None, rows[:2][-1].launch, FIXED),) for capability, rows in table.items()}
    for kind, table in TABLES.items()
}


def launch_for(kind: LinearFormat, capability: int, entries: int, experts: int, *, strict: bool) -> Few:
    """For so many entries, padding included, of a layer with so many experts."""
    return choose(STRICT[kind] if strict else TABLES[kind], capability, -(-entries // experts))
