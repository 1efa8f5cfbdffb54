"""The common end of every GEMM: scale the sums, add bias and residual, round, store; and the second stage of split-K.

Split-K writes the sums of its parts to [split, M, N] and a second kernel adds them up in ascending order, so a result
does not depend on which program finished first. Float parts are scaled before they are written. int32 parts are
scaled after the last addition, so int8 results have the same bits for any split.
"""

from __future__ import annotations

from ..gpu.language import await_inputs, jit, tl


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
    """sums times the scales of its row (of x) and channel (row of w), or of the whole tensor."""
    x_scale = tl.load(x_scales + row * X_PER_ROW, mask=row < M, other=0.0)
    w_scale = tl.load(w_scales + channel * W_PER_ROW, mask=channel < N, other=0.0)
    return sums.to(tl.float32) * x_scale * w_scale


@jit(do_not_specialize=["M"])
def reduce_kernel(
    parts, out, x_scales, w_scales, bias, residual, M, N,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [M, N] = parts [SPLIT, M, N] added up, scaled where scales are given (per row and channel), plus bias and
    residual. A program reduces BLOCK channels of a row.
    """
    await_inputs()
    row = tl.full((BLOCK,), tl.program_id(1), tl.int32)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = parts + row.to(tl.int64) * N + channel
    part_size = M.to(tl.int64) * N
    sums = tl.load(place, mask=channel < N, other=0)
    for part in tl.static_range(1, SPLIT):
        sums += tl.load(place + part * part_size, mask=channel < N, other=0)
    if x_scales is not None:
        sums = scaled(sums, x_scales, w_scales, row, channel, M, N, True, True)
    store_result(out, sums, row, channel, M, N, bias, residual)
