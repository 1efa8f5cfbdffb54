"""The int8 GEMM of many rows by a tile unit: every thread calls `tile_gemm` with its own number, as it does `gemm`.

Threads have the same panels as in `gemm`, whose callers rely on it.
"""

from __future__ import annotations

from ..compile_cache import compiled
from ..quantise.layout import row_bytes
from ..simd.amx import Amx
from .tile import L2_ACTIVATION_BYTES, PANEL
from .tile_amx import MOST_TILE_ROWS, callables

_BYTES_OF_32 = row_bytes("int8", 32)
configure, release, block = callables(Amx())


@compiled
def tile_gemm(
    thread: int,
    threads: int,
    add: int,
    rows: int,
    k: int,
    a: int,
    a_stride: int,
    weights: int,
    scales: int,
    channels: int,
    out: int,
    out_stride: int,
) -> None:
    """What `gemm` does for int8, of at least FEWEST_ROWS rows and 64 inputs."""
    panels, panel_bytes = channels // PANEL, k * PANEL
    first = panels * thread // threads
    last = panels * (thread + 1) // threads
    blocks = (rows + MOST_TILE_ROWS - 1) // MOST_TILE_ROWS
    in_cache = max(1, L2_ACTIVATION_BYTES // (k // 32 * _BYTES_OF_32) // MOST_TILE_ROWS)
    unit = configure()
    for begin in range(0, blocks, in_cache):
        for panel in range(first, last, 2):
            w = weights + panel * panel_bytes
            for number in range(begin, min(blocks, begin + in_cache)):
                row = rows * number // blocks
                own = a + row * a_stride
                prefetching = number == begin and panel + 2 < last
                block(
                    unit,
                    rows * (number + 1) // blocks - row,
                    own,
                    a_stride,
                    w,
                    min(2, last - panel),
                    panel_bytes,
                    k // 4,
                    out + row * out_stride + panel * PANEL * 4,
                    out_stride,
                    scales + panel * PANEL * 4,
                    w + 2 * panel_bytes if prefetching else own,
                    add,
                )
    release(unit)
