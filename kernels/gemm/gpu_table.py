"""How each weight format is multiplied, by device and number of rows of x.

How far K is split does not depend on the rows: a launch says how many programs run at a time and the split follows
from N and K (`split_of`). `strict` is the one launch used for every number of rows under strict determinism:
a row's result is then the same bits alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..gpu.table import LaunchRow, Table, choose

LinearFormat = Literal["w4a16", "w8a16", "w8a8", "fp8", "bf16", "fp32"]
PLAIN = ("bf16", "fp32")  # without scales; float32 is the definition on the device, and slow


@dataclass(frozen=True, slots=True)
class Few:
    """The transposed product with K split: gpu_packed.py (whose tile is 64 `blocks` channels) and gpu_narrow.py."""

    block_m: int
    block_n: int  # gpu_packed.py: 64 or 128
    block_k: int  # gpu_packed.py: 128 for 4 bits, 64 for 8
    programs: int  # that run at a time
    max_split: int
    warps: int
    stages: int
    tall: bool = False  # 4 bits: scaled before the product

    @property
    def slice(self) -> int:
        """Channels whose parts the last program of a tile adds up at a time: 64 values for each of 128 threads, and
        lines of 16 floats at least."""
        return min(self.block_n, max(16, 64 * 128 // (self.block_m * self.max_split)))


@dataclass(frozen=True, slots=True)
class Many:
    """The product over tiles of gpu_wide.py."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    programs: int
    warps: int
    stages: int
    descriptors: bool


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor's GEMM; packed weights are unpacked before it, `slab_bytes` at a time, which L2 keeps."""

    slab_bytes: int


Launch = Few | Many | Library


def split_of(launch: Few, n: int, k: int) -> int:
    """In how many parts K is summed: a power of two, with at least two steps in a part."""
    tiles = -(-n // launch.block_n)
    steps = -(-k // launch.block_k)
    split = 1
    while 2 * split <= launch.max_split and 2 * split * tiles <= launch.programs and 4 * split <= steps:
        split *= 2
    return split


def bucket_sizes(kind: LinearFormat, rows: int) -> list[int]:
    """The largest numbers of rows, up to `rows`, of the launches that any device has for them."""
    bounds = {row.up_to for table in TABLES[kind].values() for row in table}
    return sorted({bound for bound in bounds if bound is not None and bound < rows} | {rows})


def launch_for(kind: LinearFormat, capability: int, rows: int, strict: bool) -> Launch:
    return choose(STRICT[kind] if strict else TABLES[kind], capability, rows)


# Rows of x of one launch with K split: bounds the room for parts where strict determinism splits for any number.
ROWS_AT_ONCE = 256

MEBIBYTE = 1 << 20
IN_L2 = "the unpacked slab stays in L2 (50 MB on H100 and H200, 40 MB on A100); not measured yet"
FIXED = "the tile of decoding, for any number of rows; not measured yet"
# Multiprocessors of H100 and H200, and of A100. With K split, `programs` are as many as their registers and shared
# memory hold at a time, two at most on each: more would wait for a second round.
SM90, SM80 = 132, 108


def _compiled(registers: str, spills: str = ", no spills") -> str:
    return f"compiled by Triton 3.9: {registers} registers over the format's variants{spills}; not measured yet"


def _any(launch: Launch, evidence: str) -> tuple[LaunchRow[Launch], ...]:
    return (LaunchRow(None, launch, evidence),)


# Up to 1,024 rows go in launches of 256. Unpacked, a slab that L2 keeps (4,096 channels of K = 4,096) is 64 tiles of
# cuBLAS for 512 rows, on 132 multiprocessors, and twice as many launches as there are slabs.
_W4_90: tuple[LaunchRow[Launch], ...] = (
    LaunchRow(16, Few(16, 128, 128, 2 * SM90, 8, 4, 5), _compiled("104-161")),
    LaunchRow(32, Few(32, 128, 128, 2 * SM90, 8, 4, 4), _compiled("141-180")),
    LaunchRow(64, Few(64, 128, 128, SM90, 4, 8, 3), _compiled("119-185")),
    LaunchRow(128, Few(128, 128, 128, SM90, 4, 8, 3, tall=True), _compiled("154-186")),
    LaunchRow(1024, Few(256, 128, 128, SM90, 4, 8, 3, tall=True), _compiled("221-255")),
    LaunchRow(None, Library(32 * MEBIBYTE), IN_L2),
)
_W4_80: tuple[LaunchRow[Launch], ...] = (
    LaunchRow(16, Few(16, 128, 128, 2 * SM80, 8, 4, 4), _compiled("95-158")),
    LaunchRow(32, Few(32, 128, 128, 2 * SM80, 8, 4, 4), _compiled("166-255", ", up to 12 spills")),
    LaunchRow(64, Few(64, 128, 128, SM80, 4, 8, 3), _compiled("144-255")),
    LaunchRow(128, Few(128, 128, 128, SM80, 4, 8, 3, tall=True), _compiled("140-255", ", up to 3 spills")),
    LaunchRow(None, Library(16 * MEBIBYTE), IN_L2),
)
_W8_90: tuple[LaunchRow[Launch], ...] = (
    LaunchRow(16, Few(16, 128, 64, 2 * SM90, 8, 4, 5), _compiled("79-97")),
    LaunchRow(32, Few(32, 128, 64, 2 * SM90, 8, 4, 4), _compiled("94-142")),
    LaunchRow(64, Few(64, 128, 64, 2 * SM90, 4, 4, 4), _compiled("128-252")),
    LaunchRow(None, Library(32 * MEBIBYTE), IN_L2),
)
_W8_80: tuple[LaunchRow[Launch], ...] = (
    LaunchRow(16, Few(16, 128, 64, 2 * SM80, 8, 4, 5), _compiled("68-96")),
    LaunchRow(32, Few(32, 128, 64, 2 * SM80, 8, 4, 4), _compiled("93-168")),
    LaunchRow(64, Few(64, 128, 64, SM80, 4, 8, 4), _compiled("80-162", ", up to 5 spills")),
    LaunchRow(None, Library(16 * MEBIBYTE), IN_L2),
)
_INT8_90: tuple[LaunchRow[Launch], ...] = (
    LaunchRow(16, Few(16, 64, 128, 2 * SM90, 8, 4, 5), _compiled("36-72")),
    LaunchRow(64, Few(64, 64, 128, 2 * SM90, 8, 4, 4), _compiled("69-135")),
    LaunchRow(256, Many(64, 128, 128, 8, SM90, 4, 4, True), _compiled("128-190")),
    LaunchRow(None, Many(128, 256, 128, 8, SM90, 8, 3, True), _compiled("188-228")),
)
# Sums of 128 products leave the tensor core's short adder for full float32: two tiles of sums in registers.
_FP8_90: tuple[LaunchRow[Launch], ...] = (
    *_INT8_90[:3],
    LaunchRow(None, Many(128, 128, 128, 8, SM90, 8, 4, True), _compiled("190-247")),
)
_INT8_80: tuple[LaunchRow[Launch], ...] = (
    LaunchRow(16, Few(16, 64, 128, 2 * SM80, 8, 4, 4), _compiled("48-64")),
    LaunchRow(64, Few(64, 64, 128, 2 * SM80, 8, 4, 4), _compiled("106-138")),
    LaunchRow(None, Many(128, 128, 128, 8, SM80, 8, 3, False), _compiled("181-252 (FP8 in blocks)")),
)
_CUBLAS = _any(Library(0), "cuBLAS; ours not measured against it yet")

TABLES: Mapping[LinearFormat, Table[Launch]] = {
    "w4a16": {80: _W4_80, 90: _W4_90},
    "w8a16": {80: _W8_80, 90: _W8_90},
    "w8a8": {80: _INT8_80, 90: _INT8_90},
    "fp8": {89: _INT8_80, 90: _FP8_90},
    "bf16": {80: _CUBLAS},
    "fp32": {80: _CUBLAS},
}
STRICT: Mapping[LinearFormat, Table[Launch]] = {
    "w4a16": {80: _any(_W4_80[1].launch, FIXED), 90: _any(_W4_90[1].launch, FIXED)},
    "w8a16": {80: _any(_W8_80[1].launch, FIXED), 90: _any(_W8_90[1].launch, FIXED)},
    "w8a8": {80: _any(_INT8_80[1].launch, FIXED), 90: _any(_INT8_90[1].launch, FIXED)},
    "fp8": {89: _any(_INT8_80[1].launch, FIXED), 90: _any(_INT8_90[1].launch, FIXED)},
    "bf16": {
        # With 4 warps masking K's tail spills: by Triton 3.6 in 4 stages, by 3.9 in 3.
        80: (LaunchRow(None, Many(64, 128, 64, 8, SM80, 8, 4, False), _compiled("128")),),
        90: (LaunchRow(None, Many(64, 128, 64, 8, SM90, 4, 4, True), _compiled("134-166")),),
    },
    "fp32": {80: (LaunchRow(None, Many(64, 64, 16, 8, SM80, 8, 2, False), _compiled("110-128")),)},
}
