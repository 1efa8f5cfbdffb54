"""The grouped product and the weighted sum against a loop over experts, in every weight format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.kernels.experts import gpu_launch, gpu_products
from triolet.kernels.experts.gpu_launch import combine, multiply_experts
from triolet.kernels.experts.gpu_table import STRICT, TABLES, launch_for
from triolet.kernels.gemm.gpu_reference import dequantised
from triolet.kernels.gemm.gpu_table import Few
from triolet.kernels.gemm.gpu_weights import quantise_fp8

from .expert_cases import CHOSEN, EXPERTS, K, N, choices, naive, product, results_of, stack
from .gemm_cases import assert_as_good, drawn, rows_among_nan
from .mutants import mutated

Tensor = torch.Tensor
FORMATS = ("bf16", "w8a16", "w4a16", "w4a16 zeros", "fp8", "fp32")
# As checkpoints store them: the scales of each kind, with minima and without.
STORED = ("Q4_K", "Q4_1", "AWQ", "Q8_0", "Q6_K")
STORED_K = 256


def row_of_table(kind: str, tokens: int, capability: int = 90) -> Few:
    return launch_for(stack(kind, 8, STORED_K).packed.format, capability, tokens * CHOSEN, EXPERTS, strict=False)


def check_product(
    kind: str = "bf16", tokens: int = 9, *, k: int = K, chosen: Tensor | None = None, of_entries: bool = False,
    biased: bool = True, launch: Few | None = None,
) -> None:  # fmt: skip
    stacked, chosen = stack(kind, k=k), choices(tokens) if chosen is None else chosen
    x, scales = rows_among_nan(tokens * (CHOSEN if of_entries else 1), k, results_of(kind)), None
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
    x, scales = rows_among_nan(1, K, results_of(kind)), None
    if kind == "fp8":
        x, scales = quantise_fp8(x, 1, 0)
    expected = product(stacked, x, chosen, row_of_table(kind, 1), x_scales=scales)
    for expert in set(range(EXPERTS)) - {1, 4}:
        for tensor in stacked.packed.tensors.values():
            tensor[expert].view(torch.uint8).fill_(0xFF)
    assert torch.equal(product(stacked, x, chosen, row_of_table(kind, 1), x_scales=scales), expected)
    assert expected.isfinite().all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("row", range(4))
def test_every_row_of_the_tables(kind: str, row: int) -> None:
    """With an expert that takes most tokens, over a block of 16 at least, and K that is no multiple of a tile."""
    table = TABLES[stack(kind, 8, 32).packed.format]
    rows = table[max(table)]
    if row < len(rows):
        check_product(kind, 20, k=160, chosen=crowded(), launch=rows[row].launch)


def crowded() -> Tensor:
    """Of 20 tokens."""
    chosen = choices(20)
    chosen[:, 0] = 2
    chosen[:, 1] = torch.where(chosen[:, 1] == 2, 0, chosen[:, 1])
    return chosen


@pytest.mark.parametrize("row", [0, 1, 3], ids=["few", "scaled behind", "scaled before"])
@pytest.mark.parametrize("kind", STORED)
def test_experts_as_checkpoints_store_them(kind: str, row: int) -> None:
    rows = TABLES[stack(kind, 8, STORED_K).packed.format][90]
    check_product(kind, 20, k=STORED_K, chosen=crowded(), launch=rows[row].launch)


@pytest.mark.parametrize("table", [TABLES, STRICT], ids=["tables", "strict"])
def test_formats_that_may_meet_in_a_layer_have_the_same_blocks(table: Any) -> None:
    """Gates and ups, and downs, are multiplied by one plan."""
    for capability in (80, 90):
        blocks = {
            tuple((row.up_to, row.launch.block_m) for row in table[kind][capability])
            for kind in ("bf16", "w4a16", "w8a16")
        }
        assert len(blocks) == 1


def test_padding_has_no_entry() -> None:
    chosen = choices(9)
    chosen[6:] = EXPERTS
    check_product(chosen=chosen)
    check_product(chosen=torch.full_like(chosen, EXPERTS))


@pytest.mark.parametrize("kind", FORMATS)
def test_strict_results_are_the_same_bits_among_any_others(kind: str) -> None:
    stacked, chosen, x = stack(kind), choices(33), rows_among_nan(33, K, results_of(kind))
    launch = launch_for(stacked.packed.format, 90, 33, EXPERTS, strict=True)

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
        gpu_products.w8_experts_kernel, "GROUPS if GROUPS else 1", "GROUPS if GROUPS else 0",
        lambda: check_product("w8a16"),
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
    "minima of the first expert": (
        gpu_products.w4_experts_kernel, "of_expert(minima, expert, size)", "minima",
        lambda: check_product("Q4_1", k=STORED_K),
    ),
    "scales of the first expert's bytes": (
        gpu_products.w8_experts_kernel, "k_blocks * GROUPS if GROUPS else 1", "1 if GROUPS else 1",
        lambda: check_product("Q8_0", k=STORED_K),
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
    with pytest.raises(ValueError, match=r"bias: must be contiguous torch\.bfloat16 \[6, 72\], and is .* \[72\]"):
        multiply(bias=torch.zeros(N))
    with pytest.raises(ValueError, match="the plan has 10 words"):
        multiply(plan=plan[:10])
    with pytest.raises(ValueError, match="out: must be contiguous"):
        multiply(out=out.float())
    with pytest.raises(ValueError, match="plan: must be contiguous"):
        multiply(plan=plan.long())
    sums, weights = torch.zeros(2, N, dtype=torch.bfloat16), torch.zeros(2, 3)
    combine(out, weights, sums, sums)
    with pytest.raises(ValueError, match=r"results: must be contiguous torch\.bfloat16 \[6, 72\]"):
        combine(out, torch.zeros(3, 3), None, torch.zeros(3, N, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="results: must be"):
        combine(out.float(), weights, None, sums)
    with pytest.raises(ValueError, match="weights: must be"):
        combine(out, weights.double(), None, sums)
    with pytest.raises(ValueError, match="shared: must be"):
        combine(out, weights, sums[:1], sums)
    with pytest.raises(ValueError, match="not contiguous"):
        combine(out, torch.zeros(3, 2).T, None, sums)
