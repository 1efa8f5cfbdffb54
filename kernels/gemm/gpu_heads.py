"""The product of each head with its own matrix: out[t, h] = x[t, h] W[h]^T, in bfloat16 with float32 sums.

    x      [T, heads, K], the values of a head side by side, otherwise of any strides
    w      [heads, N, K]
    out    [T, heads, N], the same

Latent attention applies a head's matrices to its query and to its result. A head is a small product of its own: the
transposed one of gpu_narrow.py, whose rows do not depend on each other. The launcher allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..gpu.language import await_inputs, cdiv, jit, tl
from ..gpu.operand import need
from ..gpu.table import LaunchRow, Table, choose
from .gpu_narrow import narrow_sums

Tensor = torch.Tensor


@jit(do_not_specialize=["M"])
def heads_gemm_kernel(
    x, w, out, M, N, K, x_token, x_head, out_token, out_head,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (channel tiles, heads, row tiles)."""
    await_inputs()
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tl.program_id(0) * BLOCK_N
    sums = narrow_sums(
        x + head * x_head, w + head * N * K, None, None, start, row, M, N, K, x_token, 0, tl.cdiv(K, BLOCK_K),
        tl.float32, False, None, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
    )  # fmt: skip
    channel = (start + tl.arange(0, BLOCK_N))[:, None]
    place = out + head * out_head + row[None, :].to(tl.int64) * out_token + channel
    tl.store(place, sums.to(out.dtype.element_ty), mask=(row[None, :] < M) & (channel < N))


@dataclass(frozen=True, slots=True)
class HeadsLaunch:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# By the number of tokens. Few tokens read the matrices once: as many heads as there are keep the device busy.
TABLE: Table[HeadsLaunch] = {
    80: (
        LaunchRow(16, HeadsLaunch(16, 64, 64, 4, 4), "compiled: 40-48 registers, no spills; not measured"),
        LaunchRow(64, HeadsLaunch(64, 64, 64, 4, 3), "compiled: 72-96 registers, no spills; not measured"),
        LaunchRow(None, HeadsLaunch(128, 128, 64, 8, 3), "compiled: 107-174 registers, no spills; not measured"),
    ),
}
STRICT_TOKENS = 64  # whose launch is that of any number of them


def multiply_heads(x: Tensor, w: Tensor, out: Tensor, *, capability: int, strict: bool = False) -> None:
    """Fill `out`. strict: the bits of a token do not depend on how many there are."""
    (tokens, heads, k), n = x.shape, w.shape[1]
    need("w", w, torch.bfloat16, heads, n, k)
    if out.shape != (tokens, heads, n) or {x.dtype, out.dtype} != {torch.bfloat16}:
        raise ValueError(f"out is {out.dtype} {list(out.shape)}, must be bfloat16 {[tokens, heads, n]} as x is")
    if x.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError("the values of a head of x and of out must lie side by side")
    if tokens == 0:
        return
    launch = choose(TABLE, capability, STRICT_TOKENS if strict else tokens)
    heads_gemm_kernel[(cdiv(n, launch.block_n), heads, cdiv(tokens, launch.block_m))](
        x, w, out, tokens, n, k, x.stride(0), x.stride(1), out.stride(0), out.stride(1),
        EVEN_K=k % launch.block_k == 0, BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, BLOCK_K=launch.block_k,
        STAGES=launch.stages, num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
