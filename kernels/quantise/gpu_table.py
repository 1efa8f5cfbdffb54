"""How rows are quantised, by their size: a row's bits never depend on the batch it is in."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.table import Row, Table


@dataclass(frozen=True, slots=True)
class QuantiseLaunch:
    tile: int  # values of a turn of the loop
    num_warps: int


TABLE: Table[QuantiseLaunch] = {
    80: (
        Row(2048, QuantiseLaunch(2048, 4), "compiled: 31 registers, no spills; not measured"),
        Row(None, QuantiseLaunch(4096, 8), "compiled: 31 registers, no spills; not measured"),
    ),
}
