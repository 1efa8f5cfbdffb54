"""How the sampler is launched. Its results do not depend on it: sums and maxima are of integers."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.table import LaunchRow, Table


@dataclass(frozen=True, slots=True)
class SamplingLaunch:
    tile: int  # tokens per program, a multiple of 256 (numbers.RANDOM_BLOCK) and a power of two
    num_warps: int  # of the programs that own a tile
    row_warps: int  # of the programs that own a row


EVIDENCE = (
    "compiled: at most 127 registers (adjust, gather; threshold 108, draw 64), no spills, for sm_80 and sm_90; "
    "not measured"
)
# By the size of the vocabulary.
TABLE: Table[SamplingLaunch] = {80: (LaunchRow(None, SamplingLaunch(4096, 8, 8), EVIDENCE),)}
