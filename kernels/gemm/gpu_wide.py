"""y = x W^T for many rows of x: int8, float8 e4m3, bfloat16, float32; as many programs as the GPU has processors, each
walking over tiles of the result. x and w are pointers, for every GPU, or tensor descriptors, whose blocks sm_90's copy
engine (TMA) fetches. Layouts, scales and constants are those of gpu_narrow.py.
"""

from __future__ import annotations

from ..gpu.language import await_inputs, jit, tl
from .gpu_epilogue import scaled, store_result
from .gpu_narrow import block_scales
from .gpu_packed import rows_of


@jit
def place_of(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and channel tile number of a tile: bands of GROUP_M row tiles, so that neighbours share what L2 holds."""
    band = tile // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - band * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return band * GROUP_M + within % height, within // height


@jit
def finish_columns(
    sums, out, x_scales, w_scales, bias, residual, row, first, M, N,
    BLOCK_SCALES: tl.constexpr, X_PER_ROW: tl.constexpr, W_PER_ROW: tl.constexpr,
):  # fmt: skip
    rows, channels = row[:, None], (first + tl.arange(0, sums.shape[1]))[None, :]
    if x_scales is not None and not BLOCK_SCALES:
        sums = scaled(sums, x_scales, w_scales, rows, channels, M, N, X_PER_ROW, W_PER_ROW)
    store_result(out, sums, rows, channels, M, N, bias, residual)


@jit
def halves(sums):
    """The left and the right half of a tile: other names for the same registers."""
    return tl.split(tl.permute(tl.reshape(sums, (sums.shape[0], 2, sums.shape[1] // 2)), (0, 2, 1)))


@jit
def finish(
    sums, out, x_scales, w_scales, bias, residual, row, first, M, N,
    BLOCK_SCALES: tl.constexpr, X_PER_ROW: tl.constexpr, W_PER_ROW: tl.constexpr,
):  # fmt: skip
    """Scale and store a tile; a wide one in four pieces, which need a quarter of the registers for addresses."""
    if sums.shape[1] > 128:
        left, right = halves(sums)
        piece0, piece1 = halves(left)
        piece2, piece3 = halves(right)
        pieces = (piece0, piece1, piece2, piece3)
        for place in tl.static_range(4):
            finish_columns(
                pieces[place], out, x_scales, w_scales, bias, residual,
                row, first + place * (sums.shape[1] // 4), M, N, BLOCK_SCALES, X_PER_ROW, W_PER_ROW,
            )  # fmt: skip
    else:
        finish_columns(
            sums, out, x_scales, w_scales, bias, residual, row, first, M, N, BLOCK_SCALES, X_PER_ROW, W_PER_ROW
        )


@jit(do_not_specialize=["M"])
def wide_gemm_kernel(
    x, w, out, x_scales, w_scales, bias, residual, M, N, K, stride_x,
    SUM: tl.constexpr, BLOCK_SCALES: tl.constexpr, X_PER_ROW: tl.constexpr, W_PER_ROW: tl.constexpr,
    PRECISE: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """DESCRIPTORS: x and w are those of [M, K] and [N, K] in blocks [BLOCK_M, BLOCK_K] and [BLOCK_N, BLOCK_K], which
    are zero outside: stride_x and EVEN_K mean nothing then.
    """
    await_inputs()
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        row, first = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N
        channel = first + tl.arange(0, BLOCK_N)
        sums = tl.zeros((BLOCK_M, BLOCK_N), SUM)
        for k_block in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=STAGES):
            k = k_block * BLOCK_K
            if DESCRIPTORS:
                left, right = x.load([tile_m * BLOCK_M, k]), w.load([first, k])
            else:
                left = rows_of(x, row, M, k, stride_x, K, EVEN_K, BLOCK_K)
                right = rows_of(w, channel, N, k, K, K, EVEN_K, BLOCK_K)
            if BLOCK_SCALES:
                scale = block_scales(x_scales, w_scales, row, first, k_block, M, K, BLOCK_N)
                sums += tl.dot(left, right.T, out_dtype=SUM) * scale[:, None]
            else:
                sums = tl.dot(left, right.T, sums, max_num_imprecise_acc=PRECISE, out_dtype=SUM, input_precision="ieee")
        finish(sums, out, x_scales, w_scales, bias, residual, row, first, M, N, BLOCK_SCALES, X_PER_ROW, W_PER_ROW)
