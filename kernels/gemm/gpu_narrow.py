"""y = x W^T for few rows of x, both operands as the tensor core takes them: int8, float8 e4m3, bfloat16.

Computed transposed with the weights as left operand, K split over programs, as in gpu_packed.py. x [M, K] and
w [N, K] are contiguous along K; x's rows are stride_x apart.

Scales (float32), or None for plain bfloat16:
    BLOCK_SCALES   x_scales [M, K / 128], w_scales [N / 128, K / 128]; BLOCK_K = 128. Every 128 columns are summed by
                   themselves, scaled and added in float32.
    otherwise      x_scales [M] or [1], w_scales [N] or [1], applied to the final sums.
"""

from __future__ import annotations

from ..gpu.language import await_inputs, jit, tl
from ..gpu.prefetch import prefetch
from .gpu_epilogue import finish_tile
from .gpu_packed import rows_of, share


@jit
def block_scales(x_scales, w_scales, row, channel, k_block, M, K, WIDTH: tl.constexpr):
    """Of 128 columns: each row's scale times the one of the WIDTH channels from `channel` on, which share a block."""
    tl.static_assert(128 % WIDTH == 0, "channels of more than one block")
    groups = tl.cdiv(K, 128)
    w_scale = tl.load(w_scales + channel // 128 * groups + k_block)
    return tl.load(x_scales + row * groups + k_block, mask=row < M, other=0.0) * w_scale


@jit
def ask_for_rows(w, start, k, N, K, BLOCK_N: tl.constexpr):
    """Prefetch 512 bytes of each row of weights from `start` on, from column k on."""
    LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth  # elements
    row = tl.minimum(start + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)
    column = tl.minimum(k + LINE * tl.arange(0, 4), K - 1)
    prefetch(w + row[:, None] * K + column[None, :])


@jit
def narrow_sums(
    x, w, x_scales, w_scales, start, row, M, N, K, stride_x, first, last,
    SUM: tl.constexpr, BLOCK_SCALES: tl.constexpr, PRECISE: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N, BLOCK_M]: the channels from `start` on times x[row], over the K blocks [first, last)."""
    channel = start + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_N, BLOCK_M), SUM)
    for k_block in tl.range(first, last, num_stages=STAGES):
        k = k_block * BLOCK_K
        weights = rows_of(w, channel, N, k, K, K, EVEN_K, BLOCK_K)
        columns = rows_of(x, row, M, k, stride_x, K, EVEN_K, BLOCK_K).T
        if BLOCK_SCALES:
            scale = block_scales(x_scales, w_scales, row, start, k_block, M, K, BLOCK_N)
            sums += tl.dot(weights, columns, out_dtype=SUM) * scale[None, :]
        else:
            sums = tl.dot(weights, columns, sums, max_num_imprecise_acc=PRECISE, out_dtype=SUM, input_precision="ieee")
    return sums


@jit(do_not_specialize=["M"])
def narrow_gemm_kernel(
    x, w, out, x_scales, w_scales, bias, residual, parts, counters, M, N, K, stride_x,
    SUM: tl.constexpr, BLOCK_SCALES: tl.constexpr, X_PER_ROW: tl.constexpr, W_PER_ROW: tl.constexpr,
    PRECISE: tl.constexpr, EVEN_K: tl.constexpr, MOST_PARTS: tl.constexpr, SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """SUM: type of the sums. PRECISE: columns of float8 after which the tensor core's sum is added in full float32."""
    start = tl.program_id(0) * BLOCK_N
    first, last = share(tl.cdiv(K, BLOCK_K))
    ask_for_rows(w, start, first * BLOCK_K, N, K, BLOCK_N)
    await_inputs()
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    sums = narrow_sums(
        x, w, x_scales, w_scales, start, row, M, N, K, stride_x, first, last,
        SUM, BLOCK_SCALES, PRECISE, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
    )  # fmt: skip
    finish_tile(
        sums, out, parts, counters, None if BLOCK_SCALES else x_scales, None if BLOCK_SCALES else w_scales,
        bias, residual, row, start, M, N, X_PER_ROW, W_PER_ROW, MOST_PARTS, SLICE,
    )  # fmt: skip
