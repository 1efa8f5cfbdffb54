"""The product of gpu_packed.py for more rows of x: 4-bit weights are scaled in bfloat16 before the product.

That costs a rounding (the one that every unpacked weight has) and saves the second set of sums that scaling afterwards
needs: a tile can be twice as tall, so that unpacking its weights is paid by twice as many rows, and the tensor core
need not stop at the end of a group.
"""

from __future__ import annotations

from ..gpu.language import jit, tl
from .gpu_epilogue import store_result
from .gpu_fragment import as_tile
from .gpu_packed import by_nibble, pair_places, product, share, unpack_groups, w4_places


@jit(do_not_specialize=["M"])
def w4_tall_gemm_kernel(
    x, packed, scales, offsets, bias, residual, out, M, N, K, padded_n, stride_x,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile_n = tl.program_id(0)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    k_blocks = tl.cdiv(K, 128)
    first, last = share(k_blocks)
    places, _ = w4_places(packed, scales, k_blocks, tile_n, GROUPS, BLOCKS)
    pairs = pair_places(tile_n, GROUPS, BLOCKS)
    scales += pairs
    apart = padded_n * GROUPS

    here = tl.minimum(first, k_blocks - 1) * apart  # the last part may be empty
    scale = tl.load(scales + here)
    offset = None
    if offsets is not None:
        offsets += pairs
        offset = tl.load(offsets + here)
    sums = tl.zeros((64 * BLOCKS, BLOCK_M), tl.float32)
    for k_block in tl.range(first, last, num_stages=STAGES):
        k = k_block * 128
        low, high = unpack_groups(tl.load(places + k_block * 4096), offset, GROUPS, BLOCKS)
        low_scale, high_scale = by_nibble(scale.to(tl.bfloat16), GROUPS, BLOCKS)
        ahead = tl.minimum(k_block + 1, k_blocks - 1) * apart
        scale = tl.load(scales + ahead)
        if offsets is not None:
            offset = tl.load(offsets + ahead)
        sums = product(as_tile(low * low_scale, BLOCKS), sums, x, row, k, stride_x, M, K, EVEN_K)
        sums = product(as_tile(high * high_scale, BLOCKS), sums, x, row, k + 64, stride_x, M, K, EVEN_K)
    channel = tile_n * (64 * BLOCKS) + tl.arange(0, 64 * BLOCKS)
    part = out + tl.program_id(1).to(tl.int64) * M * N
    store_result(part, sums, row[None, :], channel[:, None], M, N, bias, residual)
