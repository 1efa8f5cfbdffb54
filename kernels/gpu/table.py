"""Launch tables: which tile sizes, warps and stages an operation runs with, by device and shape.

Nothing is tuned while serving. A table is checked-in Python, written by hand or by the tuning script, with the evidence
beside each row. An unmeasured device uses the rows of the nearest older one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

PAGE_TOKENS = 64  # per page of the KV cache: a tile of attention, and the scheduler's block
E4M3_CAPABILITY = 89  # the first with e4m3: below it Triton refuses the type, and kernels handle its bits

Launch = TypeVar("Launch")


@dataclass(frozen=True, slots=True)
class LaunchRow(Generic[Launch]):
    """The launch of shapes up to a bound, and why."""

    up_to: int | None  # largest size of the bucket, in the operation's own measure (rows, tokens); None: any
    launch: Launch
    evidence: str


Table = Mapping[int, tuple[LaunchRow[Launch], ...]]
"""By compute capability (80, 90): rows in ascending order, the last one for any size."""


def choose(table: Table[Launch], capability: int, size: int) -> Launch:
    """The launch for a size on a device. An unknown device uses the newest rows not newer than itself."""
    known = [measured for measured in table if measured <= capability]
    rows = table[max(known) if known else min(table)]
    for row in rows:
        if row.up_to is None or size <= row.up_to:
            return row.launch
    raise ValueError(f"the launch table has no row for size {size}: its last row must be for any size")
