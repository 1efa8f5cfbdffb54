"""The launches of a mixture of experts on the GPU, in their order: route (gpu_route.py), group (gpu_group.py), the
product of gates and ups, the activation (activation/gpu.py), the product of downs, and the weighted sum. They allocate
nothing and read nothing back, so that a graph can hold them.
"""

from __future__ import annotations

import torch

from ..gemm.gpu_launch_packed import byte_groups
from ..gemm.gpu_operands import ACTIVATIONS, with_room
from ..gemm.gpu_table import Few
from ..gemm.gpu_weights import PackedLinear
from ..gpu.language import cdiv
from ..gpu.operand import need
from .gpu_group import most_blocks, plan_words
from .gpu_products import combine_kernel, plain_experts_kernel, w4_experts_kernel, w8_experts_kernel
from .gpu_table import COMBINE_BLOCK, COMBINE_WARPS

Tensor = torch.Tensor


def multiply_experts(
    x: Tensor, weight: PackedLinear, plan: Tensor, out: Tensor, *, launch: Few, experts: int,
    x_scales: Tensor | None = None, bias: Tensor | None = None,
) -> None:  # fmt: skip
    """out [entries, N] = x W^T (+ bias) with the W of each entry's expert.

    x is [tokens, K] or [entries, K], as the format of the weights says, with float32 scales [rows] where that is e4m3.
    The tensors of `weight` have one dimension more, of experts, in front. The plan was made with launch.block_m.
    """
    count, n, k = len(out), weight.n, weight.k
    _check(x, x_scales, weight, plan, out, bias, experts, launch)
    blocks = most_blocks(count, experts, launch.block_m)
    if blocks == 0:
        return
    launch = with_room(weight, launch)
    grid = (cdiv(n, launch.block_n), blocks)
    sizes = (bias, out, plan, count, count // len(x), n, k, x.stride(0))
    constants = {
        "EVEN_K": k % launch.block_k == 0,
        "BLOCK_M": launch.block_m,
        "STAGES": launch.stages,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
    }
    match weight.format:
        case "w4a16":
            w4_experts_kernel[grid](
                x, weight.weight, weight.scales, weight.offsets, weight.minima, *sizes,
                GROUPS=128 // weight.group, BLOCKS=launch.block_n // 64, TALL=launch.tall, **constants,
            )  # fmt: skip
        case "w8a16":
            w8_experts_kernel[grid](
                x, weight.weight, weight.scales, *sizes,
                GROUPS=byte_groups(weight), BLOCKS=launch.block_n // 64, **constants,
            )  # fmt: skip
        case _:
            plain_experts_kernel[grid](
                x, weight.weight, x_scales, weight.scales, *sizes,
                PRECISE=launch.block_k if weight.format == "fp8" else None,
                BLOCK_N=launch.block_n, BLOCK_K=launch.block_k, **constants,
            )  # fmt: skip


def combine(results: Tensor, weights: Tensor, shared: Tensor | None, out: Tensor) -> None:
    """out [T, size] = the weighted sum of a token's entries: results [T * chosen, size], weights [T, chosen + 1].

    The last column of the weights is that of the shared expert's result [T, size]. All are contiguous.
    """
    (tokens, size), chosen = out.shape, weights.shape[1] - 1
    wide = torch.float32 if out.dtype == torch.float32 else torch.bfloat16
    need("out", out, wide, tokens, size)
    need("results", results, wide, tokens * chosen, size)
    need("weights", weights, torch.float32, tokens, chosen + 1)
    need("shared", shared, wide, tokens, size)
    combine_kernel[tokens, cdiv(size, COMBINE_BLOCK)](
        results, weights, shared, out, CHOSEN=chosen, SIZE=size, BLOCK=COMBINE_BLOCK, num_warps=COMBINE_WARPS
    )


def _check(
    x: Tensor, x_scales: Tensor | None, weight: PackedLinear, plan: Tensor, out: Tensor, bias: Tensor | None,
    experts: int, launch: Few,
) -> None:  # fmt: skip
    rows, count = len(x), len(out)
    if weight.format == "w8a8" or (weight.format == "fp8" and weight.group):
        raise ValueError(f"experts in {weight.format} with group {weight.group}: no kernel multiplies these")
    if x.shape[1] != weight.k or x.stride(1) != 1 or count % rows:
        raise ValueError(f"x is {list(x.shape)}; {count} entries need [tokens or entries, {weight.k}]")
    if x.dtype != ACTIVATIONS.get(weight.format, torch.bfloat16):
        raise ValueError(f"x is {x.dtype}, which {weight.format} does not take")
    if (x_scales is None) == (weight.format == "fp8") or (x_scales is not None and x_scales.shape != (rows,)):
        raise ValueError(f"x has the scales {x_scales if x_scales is None else list(x_scales.shape)}")
    if len(weight.weight) != experts:
        raise ValueError(f"there are the matrices of {len(weight.weight)} experts, not of {experts}")
    wide = torch.float32 if weight.format == "fp32" else torch.bfloat16
    need("out", out, wide, count, weight.n)
    need("bias", bias, wide, experts, weight.n)
    need("plan", plan, torch.int32, *plan.shape)
    if plan.numel() < plan_words(count, experts, launch.block_m):
        raise ValueError(f"the plan has {plan.numel()} words, made for fewer entries than {count} or another block")
