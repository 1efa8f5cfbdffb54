"""The attention kernel as compiled code calls it: attend(tag, rows, ...) for 1 to 6 rows; see tile.py for the
arguments.
"""

from __future__ import annotations

from ..simd.functions import kernel
from .tile import ARGUMENTS, emit

attend = kernel("i" + "i" + ARGUMENTS, emit)
