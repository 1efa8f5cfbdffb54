"""The grouped product and the weighted sum in every weight format: the GPU suite's checks; planted faults fail."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from triolet.kernels.experts import gpu_launch, gpu_products
from triolet.kernels.experts.gpu_launch import combine, multiply_experts
from triolet.kernels.experts.gpu_table import STRICT, TABLES, launch_for
from triolet.kernels.gemm.gpu_table import Few
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_experts import FORMATS, Stack, check_product, check_sum, choices, product, stack
from triolet.loadtest.device.gpu_gemm import inputs_of, rows_among_nan

from .cases import MACHINE

Tensor = torch.Tensor
EXPERTS, CHOSEN, N, K = 6, 2, 72, 96
SHAPE, STORED_SHAPE = (EXPERTS, N, K), (EXPERTS, N, 256)
# As checkpoints store them: the scales of each kind, with minima and without.
STORED = ("Q4_K", "Q4_1", "AWQ", "Q8_0", "Q6_K")


def launch_of(stacked: Stack, tokens: int) -> Few:
    return launch_for(stacked.packed.format, 90, tokens * CHOSEN, EXPERTS, strict=False)


@pytest.mark.parametrize("of_entries", [False, True], ids=["of tokens", "of entries"])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_product_is_that_of_a_loop_over_experts(kind: str, of_entries: bool) -> None:
    check_product(kind, 9, SHAPE, MACHINE, of_entries=of_entries, biased=not of_entries)


@pytest.mark.parametrize("kind", FORMATS)
def test_one_token_reads_its_experts_alone(kind: str) -> None:
    """What nobody chose is NaN, and so would be what it touched."""
    stacked, chosen = stack(kind, *SHAPE), torch.tensor([[4, 1]], dtype=torch.int32)
    x, scales = inputs_of(stacked.packed.format, rows_among_nan(1, K, stacked.bias.dtype))
    expected = product(stacked, x, chosen, launch_of(stacked, 1), scales)
    for expert in set(range(EXPERTS)) - {1, 4}:
        for tensor in stacked.packed.tensors.values():
            tensor[expert].view(torch.uint8).fill_(0xFF)
    assert torch.equal(product(stacked, x, chosen, launch_of(stacked, 1), scales), expected)
    assert expected.isfinite().all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("row", range(4))
def test_every_row_of_the_tables(kind: str, row: int) -> None:
    """With an expert that takes most tokens, over a block of 16 at least, and K that is no multiple of a tile."""
    table = TABLES[stack(kind, 1, 8, 32).packed.format]
    rows = table[max(table)]
    if row < len(rows):
        check_product(kind, 40, (EXPERTS, N, 160), MACHINE, launch=rows[row].launch)


@pytest.mark.parametrize("row", [0, 1, 3], ids=["few", "scaled behind", "scaled before"])
@pytest.mark.parametrize("kind", STORED)
def test_experts_as_checkpoints_store_them(kind: str, row: int) -> None:
    launch = TABLES[stack(kind, 1, 8, 256).packed.format][90][row].launch
    check_product(kind, 40, STORED_SHAPE, MACHINE, launch=launch)


@pytest.mark.parametrize("table", [TABLES, STRICT], ids=["tables", "strict"])
def test_formats_that_may_meet_in_a_layer_have_the_same_blocks(table: Any) -> None:
    """Gates and ups, and downs, are multiplied by one plan."""
    for capability in (80, 90):
        blocks = {
            tuple((row.up_to, row.launch.block_m) for row in table[kind][capability])
            for kind in ("bf16", "w4a16", "w8a16")
        }
        assert len(blocks) == 1


def test_padding_alone_has_no_entry() -> None:
    check_product("bf16", 9, SHAPE, MACHINE, picks=torch.full((9, CHOSEN), EXPERTS).int())


@pytest.mark.parametrize("kind", FORMATS)
def test_strict_results_are_the_same_bits_among_any_others(kind: str) -> None:
    stacked, chosen = stack(kind, *SHAPE), choices(33, EXPERTS, CHOSEN)
    x = rows_among_nan(33, K, stacked.bias.dtype)
    launch = launch_for(stacked.packed.format, 90, 33, EXPERTS, strict=True)

    def results(tokens: list[int]) -> Tensor:
        values, scales = inputs_of(stacked.packed.format, x[tokens])
        return product(stacked, values, chosen[tokens], launch, scales).view(len(tokens), CHOSEN, -1)

    whole = results(list(range(33)))
    assert launch_for(stacked.packed.format, 90, 5, EXPERTS, strict=True) is launch
    for tokens in ([7], [32, 7, 0], list(reversed(range(33)))):
        assert torch.equal(results(tokens), whole[tokens])


@pytest.mark.parametrize("shared", [False, True])
def test_the_sum_is_weighted(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_launch, "COMBINE_BLOCK", 16)
    check_sum(3, CHOSEN, 40, MACHINE, shared=shared)


# The kernel, and the kind of product that shows the fault; or the sum.
FAULTS = {
    "matrix of the expert before": ("plain_experts_kernel", "expert * N * K", "0", "bf16"),
    "float32 rounded to bfloat16": ("plain_experts_kernel", "(out, sums,", "(out, sums.to(tl.bfloat16),", "fp32"),
    "bias of the first expert": ("plain_experts_kernel", "of_expert(bias, expert, N)", "bias", "bf16"),
    "row of another token": (
        "plain_experts_kernel", "entry // per_row, count", "entry % (count // per_row), count", "bf16",
    ),
    "channel scales of the first expert": ("plain_experts_kernel", "of_expert(w_scales, expert, N)", "w_scales", "fp8"),
    "bytes of another expert": ("w8_experts_kernel", "padded_n // 64 * k_blocks * 4096", "k_blocks * 4096", "w8"),
    "scales of the first expert": ("w8_experts_kernel", "GROUPS if GROUPS else 1", "GROUPS if GROUPS else 0", "w8"),
    "nibbles of another expert": ("w4_experts_kernel", "2 * k_blocks * 4096", "k_blocks * 4096", "w4"),
    "group scales of the first expert": ("w4_experts_kernel", "scales + expert * size", "scales", "w4"),
    "zero points of the first expert": ("w4_experts_kernel", "of_expert(offsets, expert, size)", "offsets", "w4 zeros"),
    "minima of the first expert": ("w4_experts_kernel", "of_expert(minima, expert, size)", "minima", "Q4_1"),
    "scales of the first expert's bytes": (
        "w8_experts_kernel", "k_blocks * GROUPS if GROUPS else 1", "1 if GROUPS else 1", "Q8_0",
    ),
    "weights in another order": ("combine_kernel", "weights + place", "weights", "sum"),
    "shared expert with another's weight": ("combine_kernel", "weights + CHOSEN", "weights", "sum"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_checks_find_a_planted_fault(name: str) -> None:
    kernel, old, new, kind = FAULTS[name]
    shape = SHAPE if kind in FORMATS else STORED_SHAPE
    check = partial(check_sum, 3, CHOSEN, 40) if kind == "sum" else partial(check_product, kind, 9, shape)
    with fault(gpu_products, kernel, old, new, gpu_launch), pytest.raises(Wrong):
        check(MACHINE)


def test_what_does_not_fit_is_refused() -> None:
    stacked, x = stack("bf16", *SHAPE), rows_among_nan(2, K)
    launch = launch_of(stacked, 2)
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
