"""How rows are gathered. One launch for every size: the work is a copy."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.table import Row, Table


@dataclass(frozen=True, slots=True)
class GatherLaunch:
    tile: int  # values per program
    num_warps: int


TABLE: Table[GatherLaunch] = {
    80: (Row(None, GatherLaunch(1024, 4), "compiled: 16 registers, no spills; not measured"),)
}
