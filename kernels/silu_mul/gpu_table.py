"""How silu_mul is launched, by the size of a row: a row's bits never depend on the batch it is in."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.table import Row, Table


@dataclass(frozen=True, slots=True)
class SiluMulLaunch:
    tile: int  # values per program, or per turn of the loop where a program owns a row
    num_warps: int


TILES: Table[SiluMulLaunch] = {
    80: (Row(None, SiluMulLaunch(1024, 4), "compiled: 30 registers, no spills; not measured"),)
}
ROWS: Table[SiluMulLaunch] = {
    80: (
        Row(4096, SiluMulLaunch(4096, 8), "compiled: 32 registers, no spills; not measured"),
        Row(None, SiluMulLaunch(8192, 16), "compiled: 40 registers, no spills; not measured"),
    ),
}
