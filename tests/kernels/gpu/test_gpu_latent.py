"""What latent attention does around its scores, against float64: norm, rotations and cache write; each head's products.
Planted faults fail.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from triolet.kernels.gemm import gpu_heads
from triolet.kernels.gemm.gpu_heads import TABLE, multiply_heads
from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope import gpu_latent
from triolet.kernels.rope.gpu_latent import latent_cache
from triolet.kernels.rope.reference import rope_reference
from triolet.loadtest.device.gpu_check import fault

POSITIONS = torch.tensor([3, 0, 63, 5], dtype=torch.int32)
SLOTS = torch.tensor([PAGE + 3, 0, -1, 2 * PAGE - 1], dtype=torch.int32)
EPS = 0.1
SIZES = [(3, 24, 10, 6), (4, 32, 8, 4), (1, 16, 2, 5)]  # heads, rank, rotated and plain dimensions


def near(found: Tensor, exact: Tensor) -> bool:
    """At most twice as far as the nearest bfloat16, in a row's worst value."""
    rounding = (exact.bfloat16().double() - exact).abs().amax(-1, keepdim=True)
    return bool(((found.double() - exact).abs() <= 2 * rounding + 1e-12).all())


def caches(heads: int, rank: int, rope: int, plain: int) -> bool:
    """Whether the kernel writes what it should, from rows of a projection that has queries behind each, and no more."""
    generator = torch.Generator().manual_seed(3)
    row = rank + rope
    projected = torch.randn(4, row + heads * (plain + rope), generator=generator).bfloat16()
    norm = (torch.rand(rank, generator=generator) + 0.5).bfloat16()
    angle = torch.rand(64, rope // 2, generator=generator) * 6
    table = torch.cat([angle.cos(), angle.sin()], -1)
    cache, q = torch.zeros(2, 1, PAGE, row).bfloat16(), torch.full((4, heads, row), math.nan).bfloat16()
    latent_cache(projected[:, :row], projected[:, row:], norm, EPS, table, POSITIONS, SLOTS, cache, q)

    wide, angles = projected.double(), table[POSITIONS.long()].double().numpy()
    vector = rms_norm_reference(wide[:, :rank].numpy(), norm.double().numpy(), EPS)
    key = torch.from_numpy(rope_reference(wide[:, rank:row].numpy(), angles))
    turned = wide[:, row:].view(4, heads, -1)[..., plain:].numpy()
    exact_q = torch.from_numpy(rope_reference(turned, angles[:, None]))
    real = SLOTS >= 0
    entries = cache.view(-1, row)[SLOTS[real].long()]
    alone = int((cache.float() != 0).any(-1).sum()) == 3 and bool(q[..., :rank].isnan().all())
    exact_rows = torch.from_numpy(vector)[real], key[real]
    return alone and all(
        near(*pair)
        for pair in zip(
            (entries[:, :rank], entries[:, rank:], q[..., rank:]), (*exact_rows, exact_q), strict=True
        )
    )  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
def test_the_cache_has_the_normalised_vector_and_the_rotated_key(sizes: tuple[int, int, int, int]) -> None:
    assert caches(*sizes)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("turned", "low * cos - high * sin", "low * cos + high * sin"),
        ("turned", "place + HALF_DIM", "place"),
        ("latent_cache_kernel", "/ RANK + eps", "/ RANK + eps * eps"),
        ("latent_cache_kernel", "norm + dim", "norm + 0 * dim"),
        ("latent_cache_kernel", "row + RANK + pair", "row + pair"),
        ("latent_cache_kernel", "entry + RANK + pair", "entry + RANK + HALF_DIM - 1 - pair"),
        ("latent_cache_kernel", "slot = tl.load(slots + token)", "slot = tl.abs(tl.load(slots + token))"),
        ("latent_cache_kernel", "tl.load(positions + token).to", "((tl.load(positions + token) + 1) % 64).to"),
        ("latent_cache_kernel", "+ PLAIN_DIM + pair[None, :]", "+ pair[None, :]"),
        ("latent_cache_kernel", "(token * HEADS + head) * ROW", "(token * HEADS + HEADS - 1 - head) * ROW"),
    ],
)
def test_a_fault_in_the_pass_before_the_scores_is_seen(name: str, old: str, new: str) -> None:
    with fault(gpu_latent, name, old, new):
        assert not caches(*SIZES[0])


def test_sizes_that_do_not_go_together_are_refused() -> None:
    where, table, norm = torch.zeros(1, dtype=torch.int32), torch.zeros(4, 8), torch.zeros(16)
    row, queries, cache, q = (torch.zeros(*shape) for shape in ((1, 24), (1, 24), (1, 1, PAGE, 24), (1, 2, 24)))
    latent_cache(row, queries, norm, EPS, table, where, where, cache, q)
    with pytest.raises(ValueError, match="do not go with 2 heads"):
        latent_cache(row, queries[:, :-1], norm, EPS, table, where, where, cache, q)
    with pytest.raises(ValueError, match=r"cache: must be contiguous .* \[1, 1, 64, 24\]"):
        latent_cache(row, queries, norm, EPS, table, where, where, cache[:, :, 1:], q)


def product(tokens: int, *, strict: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first dimensions of each head to the first of another tensor: results, exact ones, and all of that."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(130, 3, 90, generator=generator).bfloat16()[:tokens, :, :72]
    w = torch.randn(3, 40, 72, generator=generator).bfloat16()
    whole = torch.full((tokens, 3, 96), math.nan).bfloat16()
    multiply_heads(x, w, whole[..., :40], capability=90, strict=strict)
    return whole[..., :40], torch.einsum("thk,hnk->thn", x.double(), w.double()), whole


def multiplies(tokens: int) -> bool:
    """Whether the products are as near as torch's, twice, and nothing else was written."""
    found, exact, whole = product(tokens)
    return near(found, exact) and bool(whole[..., 40:].isnan().all())


@pytest.mark.parametrize("tokens", [1, 16, 50, 130])
def test_each_head_has_its_own_product(tokens: int) -> None:
    assert multiplies(tokens)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("heads_gemm_kernel", "x + head * x_head", "x"),
        ("heads_gemm_kernel", "head * N * K", "0 * N * K"),
        ("heads_gemm_kernel", "head * out_head", "(2 - head) * out_head"),
        ("heads_gemm_kernel", "tl.cdiv(K, BLOCK_K)", "K // BLOCK_K"),
        ("heads_gemm_kernel", "& (channel < N)", ""),
        ("narrow_sums", "weights, columns, sums", "weights, columns, sums * 0"),
    ],
)
def test_a_fault_in_a_product_is_seen(name: str, old: str, new: str) -> None:
    with fault(gpu_heads, name, old, new):
        assert not multiplies(16)


def test_strict_rows_are_the_same_among_any_number() -> None:
    bits = [product(tokens, strict=True)[0][:1] for tokens in (16, 130)]
    assert len({launch.launch for launch in TABLE[80]}) == 3
    assert torch.equal(*bits)


def test_a_product_of_other_sizes_is_refused() -> None:
    x, w = torch.zeros(2, 3, 8).bfloat16(), torch.zeros(3, 4, 8).bfloat16()
    with pytest.raises(ValueError, match=r"must be bfloat16 \[2, 3, 4\]"):
        multiply_heads(x, w, torch.zeros(2, 3, 5).bfloat16(), capability=90)
    with pytest.raises(ValueError, match="side by side"):
        multiply_heads(x, w, torch.zeros(2, 4, 3).bfloat16().mT, capability=90)
