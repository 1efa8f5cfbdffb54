"""The grouped product of a mixture of experts: rows of x times the matrix of the expert that each entry chose.

    x       [R, K], rows `stride_x` apart: those of the tokens, an entry's being entry // per_row, or of the entries
    w, …    as gemm/gpu_narrow.py and gemm/gpu_packed.py have them, of all experts, one behind the other
    bias    [experts, N]
    out     [entries, N] in the type of plain x, else bfloat16, each entry in its own row
    plan    gpu_group.py's: blocks of BLOCK_M entries of one expert

The grid is (channel tiles, blocks); programs behind the last block in use end at once. So only the matrices of chosen
experts are read, once for up to BLOCK_M rows. Blocks of one expert follow one another, so that L2 serves the second. A
block's product is the transposed one of gpu_packed.py: weights as left operand fill the tensor core however few rows
an expert has. K is not split: as many experts as are chosen keep the device busy.

A row's sums do not depend on what else is in its block: each column of a product is its own.
"""

from __future__ import annotations

from ..gemm.gpu_epilogue import scaled, store_result
from ..gemm.gpu_narrow import narrow_sums
from ..gemm.gpu_packed import w4_sums, w8_sums
from ..gpu.language import await_inputs, jit, tl


@jit
def block_of(plan, BLOCK_M: tl.constexpr):
    """Whether this program's block is in use, and if so, the block's expert and its entries."""
    block, blocks = tl.program_id(1), tl.num_programs(1)
    experts = plan + blocks * BLOCK_M
    expert = tl.load(experts + block).to(tl.int64)
    return block < tl.load(experts + blocks), expert, tl.load(plan + block * BLOCK_M + tl.arange(0, BLOCK_M))


@jit
def of_expert(values, expert, size):
    """Where the expert's part begins of what may not be there."""
    begin = None
    if values is not None:
        begin = values + expert * size
    return begin


@jit(do_not_specialize=["count", "per_row"])
def w4_experts_kernel(
    x, packed, scales, offsets, minima, bias, out, plan, count, per_row, N, K, stride_x,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr,
    STAGES: tl.constexpr, TALL: tl.constexpr,
):  # fmt: skip
    """`count`: entries."""
    await_inputs()
    in_use, expert, entry = block_of(plan, BLOCK_M)
    if in_use:
        tile_n, k_blocks = tl.program_id(0), tl.cdiv(K, 128)
        packed += expert * (tl.cdiv(N, 128) * 2 * k_blocks * 4096)
        size = tl.cdiv(N, 128) * (128 * GROUPS) * k_blocks
        sums = w4_sums(
            x, packed, scales + expert * size, of_expert(offsets, expert, size), of_expert(minima, expert, size),
            tile_n, entry // per_row, count // per_row, N, K, stride_x, 0, k_blocks,
            GROUPS, EVEN_K, BLOCK_M, BLOCKS, STAGES, TALL,
        )  # fmt: skip
        channel = tile_n * (64 * BLOCKS) + tl.arange(0, 64 * BLOCKS)
        store_result(out, sums, entry[None, :], channel[:, None], count, N, of_expert(bias, expert, N), None)


@jit(do_not_specialize=["count", "per_row"])
def w8_experts_kernel(
    x, packed, scales, bias, out, plan, count, per_row, N, K, stride_x,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    await_inputs()
    in_use, expert, entry = block_of(plan, BLOCK_M)
    if in_use:
        tile_n, k_blocks, padded_n = tl.program_id(0), tl.cdiv(K, 64), tl.cdiv(N, 128) * 128
        packed += expert * (padded_n // 64 * k_blocks * 4096)
        scales += expert * (padded_n * (k_blocks * GROUPS if GROUPS else 1))
        sums = w8_sums(
            x, packed, scales, tile_n, entry // per_row, count // per_row, N, K, stride_x, 0, k_blocks,
            GROUPS, EVEN_K, BLOCK_M, BLOCKS, STAGES,
        )  # fmt: skip
        channel = tile_n * (64 * BLOCKS) + tl.arange(0, 64 * BLOCKS)
        if GROUPS == 0:
            sums *= tl.load(scales + channel)[:, None]
        store_result(out, sums, entry[None, :], channel[:, None], count, N, of_expert(bias, expert, N), None)


@jit(do_not_specialize=["count", "per_row"])
def plain_experts_kernel(
    x, w, x_scales, w_scales, bias, out, plan, count, per_row, N, K, stride_x,
    PRECISE: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """bfloat16, float32, or e4m3 with scales of x's rows and of channels [experts, N]."""
    await_inputs()
    in_use, expert, entry = block_of(plan, BLOCK_M)
    if in_use:
        start, row, rows = tl.program_id(0) * BLOCK_N, entry // per_row, count // per_row
        sums = narrow_sums(
            x, w + expert * N * K, None, None, start, row, rows, N, K, stride_x, 0, tl.cdiv(K, BLOCK_K),
            tl.float32, False, PRECISE, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        )  # fmt: skip
        channel = (start + tl.arange(0, BLOCK_N))[:, None]
        if x_scales is not None:
            scales = of_expert(w_scales, expert, N)
            sums = scaled(sums, x_scales, scales, row[None, :], channel, rows, N, True, True)
        store_result(out, sums, entry[None, :], channel, count, N, of_expert(bias, expert, N), None)


@jit
def combine_kernel(results, weights, shared, out, CHOSEN: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (tokens, blocks of channels): out [T, SIZE] = the weighted sum of a token's entries, in the order in which
    they were chosen, and of the shared expert's result [T, SIZE].
    """
    await_inputs()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    weights += token * (CHOSEN + 1)
    sums = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(CHOSEN):
        values = tl.load(results + (token * CHOSEN + place) * SIZE + column, mask=inside, other=0.0)
        sums += tl.load(weights + place) * values.to(tl.float32)
    if shared is not None:
        values = tl.load(shared + token * SIZE + column, mask=inside, other=0.0)
        sums += tl.load(weights + CHOSEN) * values.to(tl.float32)
    tl.store(out + token * SIZE + column, sums.to(out.dtype.element_ty), mask=inside)
