"""Launches for weights unpacked to bfloat16: inside our product, or for many rows before the vendor's product."""

from __future__ import annotations

import torch

from ..gpu.language import cdiv
from .gpu_dequantise import w4_dequantise_kernel, w8_dequantise_kernel
from .gpu_launch_plain import library_gemm
from .gpu_operands import COUNTER_BYTES, Operands, bytes_of, slab_rows, split_space, with_room
from .gpu_packed import w4_gemm_kernel, w8_gemm_kernel
from .gpu_table import ROWS_AT_ONCE, Few, Launch, Library, split_of
from .gpu_weights import PackedLinear

PADDING = 128  # packed weights have a multiple of this many channels


def launch_packed(operands: Operands, launch: Launch) -> None:
    space = operands.space(bytes_of(operands.weight, len(operands.x), launch))
    if isinstance(launch, Library):
        _unpack_and_multiply(operands, launch, space)
    else:
        assert isinstance(launch, Few)
        for part in operands.in_parts(ROWS_AT_ONCE):
            _launch_few(part, launch, space)


def _launch_few(operands: Operands, launch: Few, space: torch.Tensor) -> None:
    x, weight = operands.x, operands.weight
    m, n, k = len(x), weight.n, weight.k
    launch = with_room(weight, launch)
    split = split_of(launch, n, k)
    grid = (cdiv(n, launch.block_n), split, cdiv(m, launch.block_m))
    added = (operands.bias, operands.residual, operands.out, *split_space(space, grid, torch.float32))
    constants = {
        "EVEN_K": k % launch.block_k == 0,
        "BLOCK_M": launch.block_m,
        "BLOCKS": launch.block_n // 64,
        "STAGES": launch.stages,
        "MOST_PARTS": launch.max_split,
        "SLICE": launch.slice,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
    }
    if weight.format == "w4a16":
        w4_gemm_kernel[grid](
            x, weight.weight, weight.scales, weight.offsets, weight.minima, *added, m, n, k, x.stride(0),
            GROUPS=128 // weight.group, TALL=launch.tall, **constants,
        )  # fmt: skip
    else:
        w8_gemm_kernel[grid](
            x, weight.weight, weight.scales, *added, m, n, k, x.stride(0), GROUPS=byte_groups(weight),
            **constants,
        )  # fmt: skip


def _unpack_and_multiply(operands: Operands, launch: Library, space: torch.Tensor) -> None:
    """One slab of channels at a time: unpacked weights need little room and are read while still in L2."""
    weight, bias, residual = operands.weight, operands.bias, operands.residual
    n, k = weight.n, weight.k
    padded_n = cdiv(n, PADDING) * PADDING
    slab = slab_rows(weight, launch)
    for start in range(0, n, slab):
        stop = min(n, start + slab)
        dense = space[COUNTER_BYTES:].view(torch.bfloat16)[: (stop - start) * k].view(stop - start, k)
        if weight.format == "w4a16":
            w4_dequantise_kernel[cdiv(stop - start, 64), cdiv(k, 128)](
                weight.weight, weight.scales, weight.offsets, weight.minima, dense, start, n, k, padded_n,
                GROUPS=128 // weight.group, num_warps=4,
            )  # fmt: skip
        else:
            w8_dequantise_kernel[cdiv(stop - start, 64), cdiv(k, 64)](
                weight.weight, weight.scales, dense, start, n, k, padded_n, GROUPS=byte_groups(weight), num_warps=4
            )
        library_gemm(
            operands.x,
            dense,
            operands.out[:, start:stop],
            None if bias is None else bias[start:stop],
            None if residual is None else residual[:, start:stop],
        )


def byte_groups(weight: PackedLinear) -> int:
    """Scales of 64 bytes of a channel; 0: one for the channel."""
    return 64 // weight.group if weight.group else 0
