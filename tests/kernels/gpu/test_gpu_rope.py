"""Bias, q/k norm, rotation and cache write in one pass: the suite's check in every form; planted faults fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.rope import gpu
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, RopeLaunch, rope_cache
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_rope import Turned, check_rope
from triolet.loadtest.device.gpu_rows import LIMITS

from .cases import MACHINE, table_of

TOKENS = 7
CASES = [  # and the compute capability
    (Turned(), 90),
    (Turned(norm="head", size=12), 90),
    (Turned(biased=True, heads=6, kv_heads=3, size=6), 90),
    (Turned(norm="heads", centred=True, heads=6, kv_heads=3, size=12, grows=True), 90),
    (Turned(cache=torch.int8), 90),
    (Turned(cache=torch.float8_e4m3fn), 90),
    (Turned(cache=torch.float8_e4m3fn), 80),
]


@pytest.mark.parametrize(("turned", "capability"), CASES, ids=str)
@pytest.mark.parametrize("kv_tile", [1, 8])
def test_queries_turn_and_keys_and_values_are_cached(
    turned: Turned, capability: int, kv_tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "TABLE", table_of(RopeLaunch(kv_tile, 1)))
    check_rope(TOKENS, turned, replace(MACHINE, capability=capability))


def test_e4m3_bits_made_by_hand_are_those_of_the_conversion() -> None:
    """Both ways of storing e4m3 on one token whose head runs through magnitudes down to the subnormals."""
    spread = torch.logspace(0, -6, 64).reshape(2, 32)
    qkv = torch.cat([torch.zeros(32), spread.flatten()])[None].float()
    table = torch.cat([torch.ones(1, 16), torch.zeros(1, 16)], -1)
    where = torch.zeros(1, dtype=torch.int32)
    stored = list[tuple[Tensor, Tensor]]()
    for capability in (80, 90):
        cache = LayerCache(
            *(torch.zeros(1, 1, PAGE, 32).to(torch.float8_e4m3fn) for _ in range(2)),
            *(torch.zeros(1, 1, PAGE) for _ in range(2)),
        )
        rope_cache(qkv.clone(), HeadWeights(), table, where, where, cache, capability=capability)
        stored += [(cache.keys.view(torch.uint8), cache.values.view(torch.uint8))]
    assert all(torch.equal(by_hand, converted) for by_hand, converted in zip(*stored, strict=True))
    assert int((stored[0][1][0, 0, 0] > 0).sum()) > 8  # some are subnormal, and not all are zero


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_values_are_finite_in_the_cache(dtype: torch.dtype) -> None:
    """Attention multiplies the unused end of a page with zeros, which NaN and infinity would not stay."""
    qkv = torch.ones(1, 3 * 16)
    broken = torch.tensor([math.nan, math.inf, -math.inf, torch.finfo(torch.float32).max, 2.0])
    qkv[0, 32:37] = broken
    where = torch.zeros(1, dtype=torch.int32)
    keys, values = (torch.zeros(1, 1, PAGE, 16).to(dtype) for _ in range(2))
    scales = [torch.zeros(1, 1, PAGE) if dtype in LIMITS else None for _ in range(2)]
    rope_cache(qkv, HeadWeights(), torch.ones(1, 16), where, where, LayerCache(keys, values, *scales), capability=90)
    stored = values[0, 0, 0].float() * (1.0 if scales[1] is None else scales[1][0, 0, 0])
    assert torch.allclose(stored[:6], torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0, 1.0]), rtol=0.01)
    told = keys[0, 0, 0] if scales[0] is None else scales[0][0, 0, 0]
    assert bool(told.isnan().all())  # so whoever sees the token is told


@pytest.mark.parametrize(
    ("name", "old", "new", "turned"),
    [
        ("rotated", "low * cos - high * sin", "low * cos + high * sin", Turned()),
        ("rotated", "low * low + high * high", "low * low", Turned(norm="head")),
        ("rotated", "/ HEAD_DIM + eps", "/ HEAD_DIM + eps * eps", Turned(norm="head")),
        ("rotated", "tl.where(live, low - mean, 0.0)", "low - mean", Turned(norm="heads", centred=True, size=12)),
        ("rotated", "norm + place", "norm + pair[None, :]", Turned(norm="heads")),
        ("rope_cache_kernel", "at_gain = head", "at_gain = 0 * head", Turned(norm="heads")),
        ("rope_cache_kernel", "growth + tl.load(positions + token)", "growth + token", Turned(grows=True)),
        ("rope_cache_kernel", "tl.load(positions + token).to", "((tl.load(positions + token) + 1) % 64).to", Turned()),
        ("rope_cache_kernel", "+ slot % PAGE", "+ (slot + 1) % PAGE", Turned()),
        ("rope_cache_kernel", "slot = tl.load(slots + token)", "slot = tl.abs(tl.load(slots + token))", Turned()),
        ("rope_cache_kernel", "values, value_scales, entry", "values, key_scales, entry", Turned(cache=torch.int8)),
        ("load_halves", "low += tl.load(bias", "low += 0 * tl.load(bias", Turned(biased=True)),
        ("are_finite", "1) > 0", "1) > 1", Turned()),
        ("finite", "tl.where(tl.abs(values) <= LARGEST_BF16, values, 0.0)", "0.0 * values", Turned()),
        ("write_cache", 'high, float("nan")).to', 'low, float("nan")).to', Turned()),
    ],
    ids=lambda value: str(value)[:40],
)
def test_planted_faults_fail(name: str, old: str, new: str, turned: Turned) -> None:
    with fault(gpu, name, old, new), pytest.raises(Wrong):
        check_rope(TOKENS, turned, MACHINE)


def test_what_does_not_fit_is_refused() -> None:
    where = torch.zeros(1, dtype=torch.int32)
    cache = LayerCache(torch.zeros(1, 2, PAGE, 16), torch.zeros(1, 2, PAGE, 16))
    with pytest.raises(ValueError, match="does not go with 64-token pages"):
        rope_cache(torch.zeros(1, 100), HeadWeights(), torch.zeros(4, 16), where, where, cache, capability=90)
    cache = LayerCache(cache.keys.to(torch.int8), cache.values.to(torch.int8))
    with pytest.raises(ValueError, match=r"must have scales \[1, 2, 64\]"):
        rope_cache(torch.zeros(1, 128), HeadWeights(), torch.zeros(4, 16), where, where, cache, capability=90)
