"""A GEMM as one stage of a job: its panels, and blocks of many rows, are the shares."""

from __future__ import annotations

from ..compile_cache import inlined, inner
from ..simd.formats import Tag
from ..threads.shares import MOST_SHARES, NOTHING, Crew, take, taking_part
from .cpu import gemm, row_blocks
from .tile import PANEL

# Multiplications: what a share should at least have, 1 to 3 us. Smaller ones would cost more than they save.
SHARE_WORK = 1 << 16
MOST_SHARES_A_THREAD = 4


@inlined
def _parts(rows: int, k: int, panels: int, blocks: int, threads: int) -> int:
    """Into how many ranges the panels are cut: fewer if there are several blocks of rows, as these are shares, too."""
    work = rows * k * panels * PANEL // threads // SHARE_WORK
    each = max(1, min(work, MOST_SHARES_A_THREAD // blocks))
    return min(panels, each * threads)


@inner
def shared_gemm(
    tag: Tag,
    crew: Crew,
    stage: int,
    add: int,
    rows: int,
    k: int,
    a: int,
    a_stride: int,
    weights: int,
    scales: int,
    group_shift: int,
    channels: int,
    out: int,
    out_stride: int,
) -> int:
    """`gemm` by all threads, as the stage after `stage`, whose number it gives. `a`: a thread's own copy, or shared."""
    stage += 1
    # Larger blocks than the cache holds are no harm but for the balance: `gemm` takes them apart again.
    blocks = min(row_blocks(tag, rows, k), MOST_SHARES // crew.threads)
    parts = _parts(rows, k, channels // PANEL, blocks, taking_part(crew))
    share = int(NOTHING)
    while True:
        share = take(crew, stage, parts * blocks, share)
        if share < 0:
            return stage
        block = share % blocks
        first = rows * block // blocks
        gemm(
            tag,
            share // blocks,
            parts,
            add,
            rows * (block + 1) // blocks - first,
            k,
            a + first * a_stride,
            a_stride,
            weights,
            scales,
            group_shift,
            channels,
            out + first * out_stride,
            out_stride,
        )
