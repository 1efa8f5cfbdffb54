"""Bias, q/k norm, rotation and cache write in one pass, against float64; what they leave alone; planted faults fail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.layer_norm.reference import layer_norm_reference
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope import gpu
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, RopeLaunch, rope_cache
from triolet.kernels.rope.reference import rope_reference

from .mutants import mutated

POSITIONS = torch.tensor([3, 0, 63, 5], dtype=torch.int32)
SLOTS = torch.tensor([PAGE + 3, 0, -1, 2 * PAGE - 1], dtype=torch.int32)
LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SLACK = 1e-5  # of the largest value: float32 roundings, which move a tie


@dataclass(frozen=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    has_bias: bool = False
    norm: str | None = None  # "head" or "heads"; LayerNorm if `centred`
    centred: bool = False
    grows: bool = False
    dtype: torch.dtype = torch.bfloat16
    capability: int = 90


def exact(case: Case, qkv: torch.Tensor, weights: HeadWeights, table: torch.Tensor) -> tuple[Any, Any, Any]:
    """Turned queries, turned keys, values in float64: [tokens, heads, head_dim] each."""
    full = qkv.double() if weights.bias is None else qkv.double() + weights.bias.double()
    cut = full.reshape(len(qkv), -1, case.head_dim).numpy()
    q, k, v = np.split(cut, [case.heads, case.heads + case.kv_heads], axis=1)
    if weights.q_norm is not None and weights.k_norm is not None:
        gains = weights.q_norm.double().numpy(), weights.k_norm.double().numpy()
        if case.centred:
            q, k = (layer_norm_reference(x, gain, 0.0, weights.eps) for x, gain in zip((q, k), gains, strict=True))
        else:
            q, k = (rms_norm_reference(x, gain, weights.eps) for x, gain in zip((q, k), gains, strict=True))
    angles = table[POSITIONS.long()].double().numpy()[:, None]
    return torch.from_numpy(rope_reference(q, angles)), torch.from_numpy(rope_reference(k, angles)), torch.from_numpy(v)


def cached(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """The cache's entries of the tokens with a slot, [tokens, kv_heads, head_dim]."""
    slots = SLOTS[SLOTS >= 0].long()
    entries = stored.double()[slots // PAGE, :, slots % PAGE]
    return entries if scales is None else entries * scales.double()[slots // PAGE, :, slots % PAGE][..., None]


def check(case: Case) -> None:
    generator = torch.Generator().manual_seed(7)
    width = (case.heads + 2 * case.kv_heads) * case.head_dim
    qkv = torch.randn(4, width, generator=generator).bfloat16()
    qkv[0] *= 8  # so that a scale is needed

    def gain(heads: int) -> Tensor | None:
        shape = (case.head_dim,) if case.norm == "head" else (heads, case.head_dim)
        return torch.rand(shape, generator=generator).bfloat16() + 0.5 if case.norm else None

    weights = HeadWeights(
        bias=torch.randn(width, generator=generator).bfloat16() if case.has_bias else None,
        q_norm=gain(case.heads),
        k_norm=gain(case.kv_heads),
        eps=0.1,
        centred=case.centred,
    )
    angle = torch.rand(64, case.head_dim // 2, generator=generator) * 6
    table = torch.cat([angle.cos(), angle.sin()], -1)
    shape = (2, case.kv_heads, PAGE)
    keys, values = (torch.zeros(*shape, case.head_dim).to(case.dtype) for _ in range(2))
    scales = [torch.zeros(shape) if case.dtype in LIMITS else None for _ in range(2)]
    before = qkv.clone()
    growth = torch.rand(64, generator=generator) + 1 if case.grows else None
    q, k, v = exact(case, qkv, weights, table)
    if growth is not None:
        q = q * growth[POSITIONS.long()].double()[:, None, None]
    cache = LayerCache(keys, values, *scales)
    rope_cache(qkv, weights, table, POSITIONS, SLOTS, cache, capability=case.capability, growth=growth)

    turned = qkv[:, : case.heads * case.head_dim].reshape(q.shape).double()
    rounding = (q.bfloat16().double() - q).abs().amax(-1, keepdim=True)
    assert bool(((turned - q).abs() <= 2 * rounding).all())
    assert torch.equal(qkv[:, case.heads * case.head_dim :], before[:, case.heads * case.head_dim :])
    for stored, scale, wanted in ((keys, scales[0], k[SLOTS >= 0]), (values, scales[1], v[SLOTS >= 0])):
        largest = wanted.abs().amax(-1, keepdim=True)
        if case.dtype == torch.int8:
            allowed = (0.5 / 127 + SLACK) * largest.expand_as(wanted)
        elif case.dtype == torch.float8_e4m3fn:
            allowed = (wanted.abs() * 2**-4).clamp(min=2**-10 / 448) + SLACK * largest
        else:
            allowed = 2 * (wanted.bfloat16().double() - wanted).abs().amax(-1, keepdim=True) + 1e-12
        assert bool(((cached(stored, scale) - wanted).abs() <= allowed).all())
        assert int((stored.float() != 0).any(-1).sum()) == 3 * case.kv_heads  # nothing was written anywhere else


CASES = [
    Case(),
    Case(norm="head", head_dim=12),
    Case(has_bias=True, heads=6, kv_heads=3, head_dim=6),
    Case(norm="heads", centred=True, heads=6, kv_heads=3, head_dim=12, grows=True),
    Case(dtype=torch.int8),
    Case(dtype=torch.float8_e4m3fn),
    Case(dtype=torch.float8_e4m3fn, capability=80),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kv_tile", [1, 8])
def test_queries_turn_and_keys_and_values_are_cached(case: Case, kv_tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TABLE", {80: (LaunchRow(None, RopeLaunch(kv_tile, 1), "a test's"),)})
    check(case)


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


FAULTS = [
    ("rotated", "low * cos - high * sin", "low * cos + high * sin", Case()),
    ("rotated", "low * low + high * high", "low * low", Case(norm="head")),
    ("rotated", "/ HEAD_DIM + eps", "/ HEAD_DIM + eps * eps", Case(norm="head")),
    ("rotated", "tl.where(live, low - mean, 0.0)", "low - mean", Case(norm="heads", centred=True, head_dim=12)),
    ("rotated", "norm + place", "norm + pair[None, :]", Case(norm="heads")),
    ("rope_cache_kernel", "at_gain = head", "at_gain = 0 * head", Case(norm="heads")),
    ("rope_cache_kernel", "growth + tl.load(positions + token)", "growth + token", Case(grows=True)),
    ("rope_cache_kernel", "tl.load(positions + token).to", "((tl.load(positions + token) + 1) % 64).to", Case()),
    ("rope_cache_kernel", "+ slot % PAGE", "+ (slot + 1) % PAGE", Case()),
    ("rope_cache_kernel", "slot = tl.load(slots + token)", "slot = tl.abs(tl.load(slots + token))", Case()),
    ("rope_cache_kernel", "values, value_scales, entry", "values, key_scales, entry", Case(dtype=torch.int8)),
    ("load_halves", "low += tl.load(bias", "low += 0 * tl.load(bias", Case(has_bias=True)),
    ("are_finite", "1) > 0", "1) > 1", Case()),
    ("finite", "tl.where(tl.abs(values) <= LARGEST_BF16, values, 0.0)", "0.0 * values", Case()),
    ("write_cache", 'high, float("nan")).to', 'low, float("nan")).to', Case()),
]


@pytest.mark.parametrize(("name", "old", "new", "case"), FAULTS, ids=lambda value: str(value)[:40])
def test_planted_faults_fail(
    name: str, old: str, new: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = mutated(getattr(gpu, name), old, new, tmp_path)
    monkeypatch.setattr(gpu, name, fault)
    with pytest.raises(AssertionError):
        check(case)


def test_what_does_not_fit_is_refused() -> None:
    where = torch.zeros(1, dtype=torch.int32)
    cache = LayerCache(torch.zeros(1, 2, PAGE, 16), torch.zeros(1, 2, PAGE, 16))
    with pytest.raises(ValueError, match="does not go with 64-token pages"):
        rope_cache(torch.zeros(1, 100), HeadWeights(), torch.zeros(4, 16), where, where, cache, capability=90)
    cache = LayerCache(cache.keys.to(torch.int8), cache.values.to(torch.int8))
    with pytest.raises(ValueError, match=r"must have scales \[1, 2, 64\]"):
        rope_cache(torch.zeros(1, 128), HeadWeights(), torch.zeros(4, 16), where, where, cache, capability=90)
