"""Where K is split a launch counts on so many programs running at a time: as compiled, so many fit on the device."""

from __future__ import annotations

import pytest

from triolet.kernels.gemm.gpu_table import SM80, SM90, STRICT, TABLES, Few, LinearFormat

from .conftest import Compiled

MULTIPROCESSORS = {80: SM80, 90: SM90}
# Of one multiprocessor, by capability. Every program takes a KB of shared memory for the system.
REGISTERS = 65_536
SHARED = {80: 164 << 10, 90: 228 << 10}
FEW = [
    (kind, capability, row.launch)
    for kind, table in [*TABLES.items(), *STRICT.items()]
    for capability, rows in table.items()
    for row in rows
    if isinstance(row.launch, Few) and capability in MULTIPROCESSORS
]


def resident(capability: int, registers: int, shared: int, warps: int) -> int:
    """Programs that a multiprocessor runs at a time. Registers are given out to threads by 8."""
    threads = 32 * warps
    return min(REGISTERS // (-(-registers // 8) * 8 * threads), SHARED[capability] // (shared + 1024))


def is_form_of(row: Compiled, kind: LinearFormat, capability: int, launch: Few) -> bool:
    """Whether this was compiled for the launch. Plain formats have a kernel in common and differ in what they add."""
    constants = row["constants"]
    tile: dict[str, object] = {"BLOCK_M": launch.block_m, "STAGES": launch.stages}
    if kind in ("w4a16", "w8a16"):
        kernel = kind.replace("a16", "_gemm_kernel")
        tile |= {"BLOCKS": launch.block_n // 64}
        if kind == "w4a16":
            tile |= {"TALL": launch.tall}
    else:
        kernel = "narrow_gemm_kernel"
        tile |= {"BLOCK_N": launch.block_n, "BLOCK_K": launch.block_k, "SUM": "int32" if kind == "w8a8" else "fp32"}
    alike = all(constants.get(name) == str(value) for name, value in tile.items())
    return alike and (row["kernel"], row["capability"], row["warps"]) == (kernel, capability, launch.warps)


def programs_at_a_time(compiled: list[Compiled], kind: LinearFormat, capability: int, launch: Few) -> int:
    forms = [row for row in compiled if is_form_of(row, kind, capability, launch)]
    assert forms
    fitting = (resident(capability, row["registers"], row["shared"], row["warps"]) for row in forms)
    return min(fitting) * MULTIPROCESSORS[capability]


@pytest.mark.parametrize(("kind", "capability", "launch"), FEW)
def test_the_programs_of_a_launch_run_at_a_time(
    compiled: list[Compiled], kind: LinearFormat, capability: int, launch: Few
) -> None:
    assert launch.programs <= programs_at_a_time(compiled, kind, capability, launch)


@pytest.mark.parametrize("capability", MULTIPROCESSORS)
def test_tall_tiles_run_one_on_a_multiprocessor(compiled: list[Compiled], capability: int) -> None:
    (launch,) = (row.launch for row in TABLES["w4a16"][capability] if row.up_to == 128)
    assert isinstance(launch, Few)
    assert programs_at_a_time(compiled, "w4a16", capability, launch) == MULTIPROCESSORS[capability]


def test_what_fits_follows_from_registers_and_shared_memory() -> None:
    assert resident(90, 128, 65_536, 8) == 2
    assert resident(90, 129, 65_536, 8) == 1  # 136 for each of 256 threads
    assert resident(90, 32, 115_712, 4) == 2  # twice 113 KB and one of the system
    assert resident(90, 32, 115_713, 4) == 1
    assert resident(80, 32, 82_944, 4) == 2
    assert resident(80, 32, 82_945, 4) == 1
