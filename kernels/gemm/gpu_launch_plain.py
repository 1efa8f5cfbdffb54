"""Launches for operands that are multiplied as they are: int8, e4m3, bfloat16, float32."""

from __future__ import annotations

from typing import Any

import torch

from ..gpu.language import cdiv, tl
from .gpu_narrow import narrow_gemm_kernel
from .gpu_operands import Operands, bytes_of, split_space
from .gpu_table import ROWS_AT_ONCE, Few, Launch, Library, Many, launch_for, split_of
from .gpu_wide import wide_gemm_kernel

Tensor = torch.Tensor
INTERPRETED_AS = 80  # the capability without descriptors
Constants = dict[str, Any]  # Any: whatever a constexpr may be


def launch_plain(operands: Operands, launch: Launch) -> None:
    match launch:
        case Few():
            space = operands.space(bytes_of(operands.weight, len(operands.x), launch))
            for part in operands.in_parts(ROWS_AT_ONCE):
                _launch_few(part, launch, space)
        case Many():
            _launch_many(operands, launch)
        case Library() if operands.out.dtype == torch.float32 != operands.x.dtype and operands.out.is_cpu:
            # torch has this product only on CUDA. When interpreted, ours is used, which also allocates nothing.
            launch_plain(operands, launch_for("bf16", INTERPRETED_AS, len(operands.x), strict=True))
        case Library():
            library_gemm(operands.x, operands.weight.weight, operands.out, operands.bias, operands.residual)


def library_gemm(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None) -> None:
    """The vendor's GEMM: torch's, which is cuBLAS on an NVIDIA GPU. A float32 out takes bfloat16's sums unrounded."""
    widens = out.dtype == torch.float32 != x.dtype
    if widens and not out.is_cpu:
        torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
    elif widens:  # of unpacked weights, interpreted
        torch.mm(x.float(), weight.float().T, out=out)
    elif residual is not None:
        torch.addmm(residual, x, weight.T, out=out)
        if bias is not None:
            out.add_(bias)
    elif bias is not None:
        torch.addmm(bias, x, weight.T, out=out)
    else:
        torch.mm(x, weight.T, out=out)


def _constants(operands: Operands, launch: Few | Many) -> Constants:
    kind, w_scales = operands.weight.format, operands.weight.scales
    return {
        "SUM": tl.int32 if kind == "w8a8" else tl.float32,
        "BLOCK_SCALES": operands.weight.group == 128,
        "X_PER_ROW": operands.x_scales is not None and operands.x_scales.ndim > 0,
        "W_PER_ROW": w_scales is not None and w_scales.ndim > 0,
        "PRECISE": launch.block_k if kind == "fp8" else None,
        "BLOCK_M": launch.block_m,
        "BLOCK_N": launch.block_n,
        "BLOCK_K": launch.block_k,
        "STAGES": launch.stages,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
    }


def _launch_few(operands: Operands, launch: Few, space: Tensor) -> None:
    x, weight = operands.x, operands.weight
    m, n, k = len(x), weight.n, weight.k
    grid = (cdiv(n, launch.block_n), split_of(launch, n, k), cdiv(m, launch.block_m))
    narrow_gemm_kernel[grid](
        x, weight.weight, operands.out, operands.x_scales, weight.scales, operands.bias, operands.residual,
        *split_space(space, grid, torch.int32 if weight.format == "w8a8" else torch.float32), m, n, k, x.stride(0),
        EVEN_K=k % launch.block_k == 0, MOST_PARTS=launch.max_split, SLICE=launch.slice,
        **_constants(operands, launch),
    )  # fmt: skip


def _launch_many(operands: Operands, launch: Many) -> None:
    x, weight = operands.x, operands.weight
    m, n, k = len(x), weight.n, weight.k
    grid = (min(launch.programs, cdiv(m, launch.block_m) * cdiv(n, launch.block_n)),)
    # The copy engine needs rows a multiple of 16 bytes apart.
    by_copy = launch.descriptors and not any(step * x.element_size() % 16 for step in (x.stride(0), k))
    left: Any = x  # Any: or a tensor descriptor
    right: Any = weight.weight
    if by_copy:
        from triton.tools.tensor_descriptor import TensorDescriptor

        left = TensorDescriptor(left, [m, k], [x.stride(0), 1], [launch.block_m, launch.block_k])
        right = TensorDescriptor(right, [n, k], [k, 1], [launch.block_n, launch.block_k])
    wide_gemm_kernel[grid](
        left, right, operands.out, operands.x_scales, weight.scales, operands.bias, operands.residual,
        m, n, k, x.stride(0), EVEN_K=by_copy or k % launch.block_k == 0, DESCRIPTORS=by_copy,
        GROUP_M=launch.group_m, **_constants(operands, launch),
    )  # fmt: skip
