"""Paged attention's kernels: the GPU suite's check in every format, stale NaN in every unused place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from triolet.loadtest.device.gpu_ragged import Form, Ragged, RaggedPart

from .cases import small_launch

# Prompt chunks (the whole prompt, the end of one, one that ends with its page) between decode rows.
MIXED = [(1, 130), (5, 5), (1, 64), (9, 71), (1, 1), (3, 128), (1, 200)]
SMALL = Form(heads=2, kv_heads=1, size=64)
IN_8_BITS = pytest.mark.parametrize("cache", ["fp8", "int8"])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(2, 2, 64), (6, 2, 64), (7, 1, 64), (20, 1, 64), (2, 1, 80), (2, 1, 96), (2, 1, 128), (2, 1, 256)],
)
def test_heads_and_sizes(heads: int, kv_heads: int, size: int) -> None:
    Ragged.drawn(Form(heads, kv_heads, size), MIXED).check(small_launch(3 * kv_heads, rows=32))


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize("cache", ["fp8", "int8", "fp32"])
def test_formats(cache: str, descriptors: bool) -> None:
    Ragged.drawn(replace(SMALL, cache=cache), MIXED).check(small_launch(3, descriptors=descriptors))


def test_a_descriptor_pads_the_head() -> None:
    Ragged.drawn(replace(SMALL, size=80), MIXED).check(small_launch(3, descriptors=True))


def test_e4m3_by_its_bits() -> None:
    batch = Ragged.drawn(replace(SMALL, cache="fp8"), MIXED)
    by_type, by_bits = (batch.result(small_launch(3, e4m3_bits=bits)) for bits in (False, True))
    assert torch.equal(by_type[:-1], by_bits[:-1])


@IN_8_BITS
@pytest.mark.parametrize("size", [1e-4, 5e3])
def test_small_and_large_values_in_8_bits(cache: str, size: float) -> None:
    """Their scales go through float16."""
    form = replace(SMALL, cache=cache)
    parts = [RaggedPart.drawn(form, seed, *chunk) for seed, chunk in enumerate(MIXED)]
    Ragged(form, [replace(part, values=part.values * size) for part in parts]).check(small_launch(3))


@IN_8_BITS
def test_small_heads_in_8_bits(cache: str) -> None:
    """Half a head is less than a matrix product takes."""
    Ragged.drawn(replace(SMALL, size=16, cache=cache), MIXED).check(small_launch(3))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("window", [1, 60, 64, 100])
def test_windows(window: int, strict: bool) -> None:
    Ragged.drawn(replace(SMALL, cache="fp32", window=window), MIXED).check(small_launch(3, strict=strict))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", [Form(6, 2, 64), Form(6, 2, 64, window=60, soft_cap=2.0)])
def test_sinks(form: Form, strict: bool) -> None:
    """Larger than every score, smaller than all, and between; in sequences that are split and in one part."""
    batch = Ragged.drawn(form, MIXED)
    batch.sinks = torch.tensor([40.0, -40.0, 2.0, 1.0, 0.0, -1.0])
    batch.check(small_launch(3, strict=strict))


@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_soft_cap(soft_cap: float) -> None:
    Ragged.drawn(replace(SMALL, soft_cap=soft_cap), MIXED).check(small_launch(3))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("heads", "rank", "rope_dim"), [(4, 32, 8), (20, 64, 16), (6, 24, 10), (16, 512, 64), (1, 16, 2)]
)
def test_latent_vectors(heads: int, rank: int, rope_dim: int, strict: bool) -> None:
    """Also where heads are cut into parts, and where neither the vector nor the rotated key is a power of two."""
    form = Form(heads, 1, rank + rope_dim, rope_dim=rope_dim)
    Ragged.drawn(form, MIXED).check(small_launch(3 * form.groups, strict=strict, rows=16 if strict else 32))


def test_latent_vectors_need_one_tensor_without_scales() -> None:
    form = Form(2, 1, 40, rope_dim=8)
    batch = Ragged.drawn(form, MIXED[:1])
    batch.values = batch.keys.clone()
    for wrong in (batch, Ragged.drawn(replace(form, cache="int8"), MIXED[:1])):
        with pytest.raises(ValueError, match="are one tensor"):
            wrong.result(small_launch(3))
