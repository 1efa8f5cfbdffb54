"""What a real tile unit must compute to the bit: products of each format, and attention, as JSON of digests.

python -m tests.amx.cases emulated     on any machine with AVX-512 BF16: by the unit that tests emulate
python -m tests.amx.cases real         by what the kernels choose there: the unit, if they may use one
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable

import numpy as np

from triolet.kernels.gemm.cpu import gemm, in_tile_unit
from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.paged_attention.cpu import most_rows
from triolet.kernels.simd.amx import TILE_ROWS
from triolet.kernels.simd.dot import multiplies_pairs
from triolet.kernels.simd.formats import TAGS, WeightFormat

from ..kernels.test_gemm import run, sample
from ..kernels.test_paged_attention import TABLE, Cache, call_attend, make_queries
from ..kernels.tile_units import EmulatedTiles, attention_with, gemm_with

# rows, channels, inputs
BYTES = ((16, 64, 64), (17, 130, 96), (31, 40, 416), (32, 64, 352), (70, 200, 1056))
PAIRS = ((1, 64, 32), (2, 130, 96), (7, 40, 416), *BYTES)
FORMATS: dict[WeightFormat, tuple[tuple[int, int, int], ...]] = {"int8": BYTES, "int4": BYTES, "bfloat16": PAIRS}
LENGTHS = (1, 33, 64, 201)


def digests(multiply: Callable[..., None], attend: Callable[..., None]) -> dict[str, str]:
    """The digest of each case's result."""
    found = dict[str, bytes]()
    for weight_format, shapes in FORMATS.items():
        for rows, channels, k in shapes:
            x, w = sample(rows, channels, k)
            if weight_format == "bfloat16":
                x, w = round_to_bfloat16(x), round_to_bfloat16(w)
            name = f"{weight_format} {rows} x {k} x {channels}"
            found[name] = run(x, w, weight_format, multiply=multiply).tobytes()
    for size in (64, 96):
        for length in LENGTHS:
            cache = Cache("bfloat16", size, length, TABLE, attend)
            for rows in (1, 5, TILE_ROWS):
                positions = [max(0, length - rows + row) for row in range(rows)]
                queries = make_queries("bfloat16", rows, size)
                name = f"attention of {rows} rows of {size} to {length} tokens"
                found[name] = cache.attend(queries, positions, 1, 100).tobytes()
    return {name: hashlib.sha256(value).hexdigest() for name, value in found.items()}


def main() -> None:
    if not multiplies_pairs():
        sys.exit("this CPU lacks AVX-512 BF16, without which operands are no pairs of bfloat16")
    if sys.argv[1] == "real":
        found = digests(gemm, call_attend)
    else:
        granted, faulty = np.ones(1, np.int64), np.zeros(1, np.int64)
        unit = EmulatedTiles(faulty.ctypes.data)
        found = digests(gemm_with(unit, granted.ctypes.data), attention_with(unit))
    used = most_rows("bfloat16") == TILE_ROWS and all(in_tile_unit(TAGS[name], 16, 64) for name in FORMATS)
    print(json.dumps({"tiles are used": used, "digests": found}))


if __name__ == "__main__":
    main()
