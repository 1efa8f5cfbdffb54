"""How rope and cache write are launched, by the number of tokens.

No sum crosses a head, but the order of one within a head (of q/k norm) follows from the tile and its warps. So strict
launches take the first row for any number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.table import Row, Table


@dataclass(frozen=True, slots=True)
class RopeLaunch:
    kv_tile: int  # key-value heads per program, at most
    num_warps: int


TABLE: Table[RopeLaunch] = {
    80: (
        Row(
            512,
            RopeLaunch(1, 1),
            "compiled: at most 64 registers, no spills; one head each, to spread a decode batch; not measured",
        ),
        Row(
            None,
            RopeLaunch(8, 4),
            "compiled: at most 64 registers, no spills; fewer programs read the angles; not measured",
        ),
    ),
}
