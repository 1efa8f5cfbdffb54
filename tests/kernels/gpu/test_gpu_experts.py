"""The grouped product and the weighted sum against a loop over experts, in every weight format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from triolet.kernels.experts import gpu_launch, gpu_products
from triolet.kernels.experts.gpu_group import group, plan_words
from triolet.kernels.experts.gpu_launch import combine, multiply_experts
from triolet.kernels.experts.gpu_table import STRICT, TABLES, launch_for
from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4
from triolet.kernels.gemm.gpu_table import Few
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_w4,
    pack_w8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)

from .gemm_cases import assert_as_good, drawn
from .mutants import mutated

Tensor = torch.Tensor
EXPERTS, CHOSEN, N, K = 6, 2, 72, 96
FORMATS = ("bf16", "w8a16", "w4a16", "w4a16 zeros", "fp8")


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
        if kind.startswith("w4a16"):
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
        else:
            packed.append(pack_bf16(weight))
            meant.append(weight.bfloat16().double())
    tensors: dict[str, Any] = {}
    for name in ("weight", "scales", "offsets"):
        parts = [getattr(one, name) for one in packed]
        tensors[name] = None if parts[0] is None else torch.stack(parts)
    return Stack(replace(packed[0], **tensors), meant, drawn(9, EXPERTS, n).bfloat16())


def choices(tokens: int) -> Tensor:
    """Of all experts but the last, which nobody chooses."""
    rng = np.random.default_rng(tokens)
    return torch.from_numpy(np.stack([rng.permutation(EXPERTS - 1)[:CHOSEN] for _ in range(tokens)]).astype(np.int32))


def rows_among_nan(rows: int, k: int) -> Tensor:
    """x whose rows are followed by NaN in memory: a read behind the last column shows."""
    wide = torch.full((rows, k + 128), torch.nan, dtype=torch.bfloat16)
    wide[:, :k] = drawn(1, rows, k).bfloat16()
    return wide[:, :k]


def product(
    stacked: Stack, x: Tensor, chosen: Tensor, launch: Few, *, x_scales: Tensor | None = None, biased: bool = True
) -> Tensor:
    """[entries, N]; -5 where nothing was written."""
    plan = torch.full((plan_words(chosen.numel(), EXPERTS, launch.block_m),), -1, dtype=torch.int32)
    group(chosen, plan, experts=EXPERTS, block_m=launch.block_m)
    out = torch.full((chosen.numel(), stacked.packed.n), -5.0, dtype=torch.bfloat16)
    multiply_experts(
        x, stacked.packed, plan, out, launch=launch, experts=EXPERTS, x_scales=x_scales,
        bias=stacked.bias if biased else None,
    )  # fmt: skip
    return out


def naive(stacked: Stack, x: Tensor, chosen: Tensor, *, biased: bool = True) -> tuple[Tensor, Tensor]:
    """Entry by entry: in plain bfloat16, and exactly, from x as it is multiplied."""
    count = chosen.numel()
    plain = torch.full((count, stacked.packed.n), -5.0, dtype=torch.bfloat16)
    exact = torch.full((count, stacked.packed.n), -5.0, dtype=torch.float64)
    for entry, expert in enumerate(int(pick) for pick in chosen.flatten()):
        if expert < EXPERTS:
            row, meant = x[entry * len(x) // count], stacked.meant[expert]
            plain[entry] = row.bfloat16() @ meant.bfloat16().T
            exact[entry] = row.double() @ meant.T
            if biased:
                plain[entry] += stacked.bias[expert]
                exact[entry] += stacked.bias[expert].double()
    return plain, exact


def row_of_table(kind: str, tokens: int, capability: int = 90) -> Few:
    return launch_for(stack(kind, 8, 32).packed.format, capability, tokens * CHOSEN, EXPERTS, strict=False)


def check_product(
    kind: str = "bf16", tokens: int = 9, *, k: int = K, chosen: Tensor | None = None, of_entries: bool = False,
    biased: bool = True, launch: Few | None = None,
) -> None:  # fmt: skip
    stacked, chosen = stack(kind, k=k), choices(tokens) if chosen is None else chosen
    x, scales = rows_among_nan(tokens * (CHOSEN if of_entries else 1), k), None
    meant = x
    if kind == "fp8":
        x, scales = quantise_fp8(x, 1, 0)
        meant = dequantised(x.float(), scales)
    out = product(stacked, x, chosen, launch or row_of_table(kind, tokens), x_scales=scales, biased=biased)
    assert_as_good(out, *naive(stacked, meant, chosen, biased=biased))


@pytest.mark.parametrize("of_entries", [False, True], ids=["of tokens", "of entries"])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_product_is_that_of_a_loop_over_experts(kind: str, of_entries: bool) -> None:
    check_product(kind, of_entries=of_entries, biased=not of_entries)


@pytest.mark.parametrize("kind", FORMATS)
def test_one_token_reads_its_experts_alone(kind: str) -> None:
    """What nobody chose is NaN, and so would be what it touched."""
    stacked, chosen = stack(kind), torch.tensor([[4, 1]], dtype=torch.int32)
    x, scales = rows_among_nan(1, K), None
    if kind == "fp8":
        x, scales = quantise_fp8(x, 1, 0)
    expected = product(stacked, x, chosen, row_of_table(kind, 1), x_scales=scales)
    for expert in set(range(EXPERTS)) - {1, 4}:
        for name in ("weight", "scales", "offsets"):
            tensor: Tensor | None = getattr(stacked.packed, name)
            if tensor is not None:
                tensor[expert].view(torch.uint8).fill_(0xFF)
    assert torch.equal(product(stacked, x, chosen, row_of_table(kind, 1), x_scales=scales), expected)
    assert expected.isfinite().all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("row", range(4))
def test_every_row_of_the_tables(kind: str, row: int) -> None:
    """With an expert that takes most tokens, over a block of 16 at least, and K that is no multiple of a tile."""
    rows = TABLES[stack(kind, 8, 32).packed.format][90]
    if row < len(rows):
        chosen = choices(20)
        chosen[:, 0] = 2
        chosen[:, 1] = torch.where(chosen[:, 1] == 2, 0, chosen[:, 1])
        check_product(kind, 20, k=160, chosen=chosen, launch=rows[row].launch)


def test_padding_has_no_entry() -> None:
    chosen = choices(9)
    chosen[6:] = EXPERTS
    check_product(chosen=chosen)
    check_product(chosen=torch.full_like(chosen, EXPERTS))


@pytest.mark.parametrize("kind", FORMATS)
def test_strict_results_are_the_same_bits_among_any_others(kind: str) -> None:
    stacked, chosen, x = stack(kind), choices(33), rows_among_nan(33, K)
    launch = STRICT[stacked.packed.format][90][0].launch

    def results(tokens: list[int]) -> Tensor:
        values, scales = x[tokens], None
        if kind == "fp8":
            values, scales = quantise_fp8(values, 1, 0)
        return product(stacked, values, chosen[tokens], launch, x_scales=scales).view(len(tokens), CHOSEN, -1)

    whole = results(list(range(33)))
    assert launch_for(stacked.packed.format, 90, 5, EXPERTS, strict=True) is launch
    for tokens in ([7], [32, 7, 0], list(reversed(range(33)))):
        assert torch.equal(results(tokens), whole[tokens])


def check_sum(*, shared: bool = True, tokens: int = 3, size: int = 40) -> None:
    results = drawn(1, tokens * CHOSEN, size).bfloat16()
    weights, beside = drawn(2, tokens, CHOSEN + 1), drawn(3, tokens, size).bfloat16()
    out = torch.full((tokens, size), torch.nan, dtype=torch.bfloat16)
    combine(results, weights, beside if shared else None, out)
    parts = results.view(tokens, CHOSEN, size)
    plain = torch.zeros(tokens, size, dtype=torch.bfloat16)
    exact = torch.zeros(tokens, size, dtype=torch.float64)
    for place in range(CHOSEN):
        plain += parts[:, place] * weights[:, place, None].bfloat16()
        exact += parts[:, place].double() * weights[:, place, None].double()
    if shared:
        plain += beside * weights[:, -1:].bfloat16()
        exact += beside.double() * weights[:, -1:].double()
    assert_as_good(out, plain, exact)


@pytest.mark.parametrize("shared", [False, True])
def test_the_sum_is_weighted(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_launch, "COMBINE_BLOCK", 16)
    check_sum(shared=shared)


MUTANTS: dict[str, tuple[Any, str, str, Callable[[], None]]] = {
    "matrix of the expert before": (gpu_products.plain_experts_kernel, "expert * N * K", "0", check_product),
    "bias of the first expert": (
        gpu_products.plain_experts_kernel, "of_expert(bias, expert, N)", "bias", check_product,
    ),
    "row of another token": (
        gpu_products.plain_experts_kernel, "entry // per_row, count", "entry % (count // per_row), count",
        check_product,
    ),
    "channel scales of the first expert": (
        gpu_products.plain_experts_kernel, "of_expert(w_scales, expert, N)", "w_scales", lambda: check_product("fp8"),
    ),
    "bytes of another expert": (
        gpu_products.w8_experts_kernel, "padded_n // 64 * k_blocks * 4096", "k_blocks * 4096",
        lambda: check_product("w8a16"),
    ),
    "scales of the first expert": (
        gpu_products.w8_experts_kernel, "scales + expert * padded_n", "scales", lambda: check_product("w8a16"),
    ),
    "nibbles of another expert": (
        gpu_products.w4_experts_kernel, "2 * k_blocks * 4096", "k_blocks * 4096", lambda: check_product("w4a16"),
    ),
    "group scales of the first expert": (
        gpu_products.w4_experts_kernel, "scales + expert * size", "scales", lambda: check_product("w4a16"),
    ),
    "zero points of the first expert": (
        gpu_products.w4_experts_kernel, "of_expert(offsets, expert, size)", "offsets",
        lambda: check_product("w4a16 zeros"),
    ),
    "weights in another order": (gpu_products.combine_kernel, "weights + place", "weights", check_sum),
    "shared expert with another's weight": (gpu_products.combine_kernel, "weights + CHOSEN", "weights", check_sum),
}  # fmt: skip


@pytest.mark.parametrize("fault", MUTANTS)
def test_the_checks_find_a_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, old, new, check = MUTANTS[fault]
    monkeypatch.setattr(gpu_launch, kernel.fn.__name__, mutated(kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check()


def test_what_does_not_fit_is_refused() -> None:
    stacked, launch, x = stack("bf16"), row_of_table("bf16", 2), rows_among_nan(2, K)
    plan, out = torch.zeros(200, dtype=torch.int32), torch.zeros(4, N, dtype=torch.bfloat16)

    def multiply(x: Tensor = x, plan: Tensor = plan, out: Tensor = out, **options: Any) -> None:
        multiply_experts(x, stacked.packed, plan, out, launch=launch, experts=EXPERTS, **options)

    multiply()
    with pytest.raises(ValueError, match=r"x is torch\.float32, which bf16 does not take"):
        multiply(x.float())
    with pytest.raises(ValueError, match=r"x is \[3, 96\]"):
        multiply(rows_among_nan(3, K))
    with pytest.raises(ValueError, match="x has the scales"):
        multiply(x_scales=torch.ones(2))
    with pytest.raises(ValueError, match=r"bias is \[72\]"):
        multiply(bias=torch.zeros(N))
    with pytest.raises(ValueError, match="the plan has 10 words"):
        multiply(plan=plan[:10])
    with pytest.raises(ValueError, match=r"results are \[4, 72\]"):
        combine(out, torch.zeros(3, 3), None, torch.zeros(3, N, dtype=torch.bfloat16))
