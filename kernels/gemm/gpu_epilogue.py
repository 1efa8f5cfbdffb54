"""The common end of every GEMM: add up the parts of split-K, scale the sums, add bias and residual, round, store.

With K split, each program of a tile writes its sums to `parts` [split, M, N] and then counts itself. The last to arrive
adds all parts in ascending order, so a result does not depend on which that was, and finishes the tile. int32 sums of
int8 products have the same bits for any split.

`counters` has an int32 for each tile of a launch. All are 0 before it and after it: the last program of a tile sets its
counter back. A launch that has begun also ends, so what a graph replays finds zeros; and launches that share counters
run one after another.
"""

from __future__ import annotations

from ..gpu.arrival import is_last
from ..gpu.language import jit, tl


@jit
def store_result(out, sums, row, channel, M, N, bias, residual):
    """out[row, channel] = sums + bias + residual, rounded once. row and channel broadcast to the shape of sums."""
    inside = (row < M) & (channel < N)
    place = row.to(tl.int64) * N + channel
    if bias is not None:
        sums += tl.load(bias + channel, mask=channel < N, other=0.0).to(tl.float32)
    if residual is not None:
        sums += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=inside)


@jit
def scaled(
    sums, x_scales, w_scales, row, channel, M, N,
    X_PER_ROW: tl.constexpr, W_PER_ROW: tl.constexpr,
):  # fmt: skip
    """sums times the scales of its row (of x) and channel (row of w), or of the whole tensor; of what has some."""
    values = sums.to(tl.float32)
    if x_scales is not None:
        values *= tl.load(x_scales + row * X_PER_ROW, mask=row < M, other=0.0)
    if w_scales is not None:
        values *= tl.load(w_scales + channel * W_PER_ROW, mask=channel < N, other=0.0)
    return values


@jit
def is_last_of_tile(sums, parts, counters, row, channel, M, N):
    """Hand over this program's part of a tile: whether all others had done so before."""
    place = parts + tl.program_id(1).to(tl.int64) * M * N + row.to(tl.int64) * N + channel
    tl.store(place, sums, mask=(row < M) & (channel < N))
    return is_last(counters + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0), tl.num_programs(1))


@jit
def whole(parts, row, channel, M, N, MOST_PARTS: tl.constexpr):
    """The sums of all parts. Their loads are under way together."""
    place, split = parts + row.to(tl.int64) * N + channel, tl.num_programs(1)
    total = tl.load(place, mask=(row < M) & (channel < N), other=0, cache_modifier=".cg")
    for part in tl.static_range(1, MOST_PARTS):
        apart = tl.full((), part, tl.int64) * M * N
        rows = tl.where(split > part, M, 0)  # of a part that there is
        total += tl.load(place + apart, mask=(row < rows) & (channel < N), other=0, cache_modifier=".cg")
    return total


@jit
def finish_tile(
    sums, out, parts, counters, x_scales, w_scales, bias, residual, row, first, M, N,
    X_PER_ROW: tl.constexpr, W_PER_ROW: tl.constexpr, MOST_PARTS: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """The end of a tile [channels from `first` on, row]. With K split (there are parts) its last program does it for
    all, SLICE channels at a time.
    """
    row, channel = row[None, :], (first + tl.arange(0, sums.shape[0]))[:, None]
    if parts is None:
        values = scaled(sums, x_scales, w_scales, row, channel, M, N, X_PER_ROW, W_PER_ROW)
        store_result(out, values, row, channel, M, N, bias, residual)
    elif is_last_of_tile(sums, parts, counters, row, channel, M, N):
        for begin in range(0, sums.shape[0], SLICE):
            some = (first + begin + tl.arange(0, SLICE))[:, None]
            total = whole(parts, row, some, M, N, MOST_PARTS)
            values = scaled(total, x_scales, w_scales, row, some, M, N, X_PER_ROW, W_PER_ROW)
            store_result(out, values, row, some, M, N, bias, residual)
