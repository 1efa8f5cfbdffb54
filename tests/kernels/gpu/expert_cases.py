"""What the tests of the grouped product share: experts in every format, choices, and the product entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from triolet.kernels.experts.gpu_group import group, plan_words
from triolet.kernels.experts.gpu_launch import multiply_experts
from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4
from triolet.kernels.gemm.gpu_table import Few
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_fp32,
    pack_w4,
    pack_w8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from triolet.loadtest.device.random_stored import LAYOUTS, held
from triolet.models.gpu.stored import format_of, pack_stored

from .gemm_cases import drawn

Tensor = torch.Tensor
EXPERTS, CHOSEN, N, K = 6, 2, 72, 96


@dataclass(frozen=True)
class Stack:
    """The matrices of all experts, packed one behind the other, and what they stand for."""

    packed: PackedLinear
    meant: list[Tensor]  # [N, K] float64
    bias: Tensor  # [EXPERTS, N]


def stack(kind: str, n: int = N, k: int = K) -> Stack:
    packed, meant = list[PackedLinear](), list[Tensor]()
    for expert in range(EXPERTS):
        weight = drawn(20 + expert, n, k) + 0.1
        if kind in LAYOUTS:
            matrix = held(LAYOUTS[kind], n, k, seed=expert)
            own = format_of(matrix.layout, k)
            assert own is not None
            packed.append(pack_stored([matrix], own))
            meant.append(torch.from_numpy(matrix.rows(0, n)).double())
        elif kind.startswith("w4a16"):
            integers, scales, zeros = quantise_w4(weight, 32, symmetric=kind == "w4a16")
            packed.append(pack_w4(integers, scales, zeros, 32))
            meant.append(dequantised_w4(integers, scales, zeros, 32))
        elif kind == "w8a16":
            packed.append(pack_w8(weight))
            meant.append(dequantised(*quantise_int8(weight)))
        elif kind == "fp8":
            values, scales = quantise_fp8(weight, 1, 0)
            packed.append(pack_fp8(values, scales))
            meant.append(dequantised(values.float(), scales))
        elif kind == "fp32":
            packed.append(pack_fp32(weight))
            meant.append(weight.double())
        else:
            packed.append(pack_bf16(weight))
            meant.append(weight.bfloat16().double())
    tensors: dict[str, Any] = {name: torch.stack([one.tensors[name] for one in packed]) for name in packed[0].tensors}
    return Stack(replace(packed[0], **tensors), meant, drawn(9, EXPERTS, n).to(results_of(kind)))


def results_of(kind: str) -> torch.dtype:
    return torch.float32 if kind == "fp32" else torch.bfloat16


def choices(tokens: int) -> Tensor:
    """Of all experts but the last, which nobody chooses."""
    rng = np.random.default_rng(tokens)
    return torch.from_numpy(np.stack([rng.permutation(EXPERTS - 1)[:CHOSEN] for _ in range(tokens)]).astype(np.int32))


def product(
    stacked: Stack, x: Tensor, chosen: Tensor, launch: Few, *, x_scales: Tensor | None = None, biased: bool = True
) -> Tensor:
    """[entries, N]; -5 where nothing was written."""
    plan = torch.full((plan_words(chosen.numel(), EXPERTS, launch.block_m),), -1, dtype=torch.int32)
    group(chosen, plan, experts=EXPERTS, block_m=launch.block_m)
    out = torch.full((chosen.numel(), stacked.packed.n), -5.0, dtype=results_of(stacked.packed.format))
    multiply_experts(
        x, stacked.packed, plan, out, launch=launch, experts=EXPERTS, x_scales=x_scales,
        bias=stacked.bias if biased else None,
    )  # fmt: skip
    return out


def naive(stacked: Stack, x: Tensor, chosen: Tensor, *, biased: bool = True) -> tuple[Tensor, Tensor]:
    """Entry by entry: in the type of the results, and exactly, from x as it is multiplied."""
    count, wide = chosen.numel(), results_of(stacked.packed.format)
    plain = torch.full((count, stacked.packed.n), -5.0, dtype=wide)
    exact = torch.full((count, stacked.packed.n), -5.0, dtype=torch.float64)
    for entry, expert in enumerate(int(pick) for pick in chosen.flatten()):
        if expert < EXPERTS:
            row, meant = x[entry * len(x) // count], stacked.meant[expert]
            plain[entry] = row.to(wide) @ meant.to(wide).T
            exact[entry] = row.double() @ meant.T
            if biased:
                plain[entry] += stacked.bias[expert]
                exact[entry] += stacked.bias[expert].double()
    return plain, exact
