"""How the RMS norm is launched, by the size of a row and not by their number: no row's bits depend on a batch."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.table import Row, Table


@dataclass(frozen=True, slots=True)
class RmsNormLaunch:
    tile: int  # values held at a time; a longer row takes the looped kernel
    num_warps: int


# 16 values per thread are two 16-byte loads of bf16 in flight; longer rows get 32 before they get more warps.
TABLE: Table[RmsNormLaunch] = {
    80: (
        Row(2048, RmsNormLaunch(2048, 4), "compiled: at most 32 registers, no spills; not measured"),
        Row(4096, RmsNormLaunch(4096, 8), "compiled: 32 registers, quantised 40, no spills; not measured"),
        Row(8192, RmsNormLaunch(8192, 8), "compiled: 53 registers, no spills; not measured"),
        Row(16384, RmsNormLaunch(16384, 16), "compiled: 64 registers, no spills; not measured"),
        Row(None, RmsNormLaunch(8192, 16), "compiled: looped, 50 registers, int8 88, no spills; not measured"),
    ),
}
