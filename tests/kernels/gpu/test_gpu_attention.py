"""Paged attention's kernels against the definition: ragged batches, every format, stale NaN in every unused place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from .attention_batch import BF16, FP8, INT8, Batch, drawn_batch, drawn_sequence, small_launch

# Prompt chunks (the whole prompt, the end of one, one that ends with its page) between decode rows.
MIXED = [(1, 130), (5, 5), (1, 64), (9, 71), (1, 1), (3, 128), (1, 200)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(2, 2, 64), (6, 2, 64), (7, 1, 64), (20, 1, 64), (2, 1, 80), (2, 1, 96), (2, 1, 128), (2, 1, 256)],
)
def test_heads_and_sizes(heads: int, kv_heads: int, size: int) -> None:
    assert drawn_batch(MIXED, heads, kv_heads, size).passes(small_launch(3 * kv_heads, rows=32))


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize(("dtype", "cache"), [(BF16, FP8), (BF16, INT8), (torch.float32, torch.float32)])
def test_formats(dtype: torch.dtype, cache: torch.dtype, descriptors: bool) -> None:
    batch = drawn_batch(MIXED, 2, 1, 64, dtype=dtype, cache=cache)
    assert batch.passes(small_launch(3, descriptors=descriptors))


def test_a_descriptor_pads_the_head() -> None:
    assert drawn_batch(MIXED, 2, 1, 80).passes(small_launch(3, descriptors=True))


def test_e4m3_by_its_bits() -> None:
    batch = drawn_batch(MIXED, 2, 1, cache=FP8)
    by_type, by_bits = (batch.attend(small_launch(3, e4m3_bits=bits)) for bits in (False, True))
    assert torch.equal(by_type[:-1], by_bits[:-1])


@pytest.mark.parametrize("cache", [FP8, INT8])
@pytest.mark.parametrize("size", [1e-4, 5e3])
def test_small_and_large_values_in_8_bits(cache: torch.dtype, size: float) -> None:
    """Their scales go through float16."""
    drawn = [drawn_sequence(seed, tokens, length, 2, 1, 64) for seed, (tokens, length) in enumerate(MIXED)]
    batch = Batch([replace(each, values=each.values * size) for each in drawn], cache=cache)
    assert batch.passes(small_launch(3))


@pytest.mark.parametrize("cache", [FP8, INT8])
def test_small_heads_in_8_bits(cache: torch.dtype) -> None:
    """Half a head is less than a matrix product takes."""
    assert drawn_batch(MIXED, 2, 1, 16, cache=cache).passes(small_launch(3))


@pytest.mark.parametrize("window", [1, 60, 64, 100])
def test_windows(window: int) -> None:
    batch = drawn_batch(MIXED, 2, 1, dtype=torch.float32)
    assert batch.passes(small_launch(3), window=window)
    assert batch.passes(small_launch(3, strict=True), window=window)


@pytest.mark.parametrize("strict", [False, True])
def test_sinks(strict: bool) -> None:
    """Larger than every score, smaller than all, and between; in sequences that are split and in one part."""
    batch = drawn_batch(MIXED, 6, 2)
    sinks = torch.tensor([40.0, -40.0, 2.0, 1.0, 0.0, -1.0])
    assert batch.passes(small_launch(3, strict=strict), sinks=sinks)
    assert batch.passes(small_launch(3, strict=strict), sinks=sinks, window=60, soft_cap=2.0)


@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_soft_cap(soft_cap: float) -> None:
    assert drawn_batch(MIXED, 2, 1).passes(small_launch(3), soft_cap=soft_cap)


@pytest.mark.parametrize(
    ("heads", "rank", "rope_dim"), [(4, 32, 8), (20, 64, 16), (6, 24, 10), (16, 512, 64), (1, 16, 2)]
)
def test_latent_vectors(heads: int, rank: int, rope_dim: int) -> None:
    """Also where heads are cut into parts, and where neither the vector nor the rotated key is a power of two."""
    batch = drawn_batch(MIXED, heads, 1, rank + rope_dim, rope_dim=rope_dim)
    assert batch.passes(small_launch(3 * batch.groups, rows=32))
    assert batch.passes(small_launch(3 * batch.groups, strict=True))


def test_latent_vectors_need_one_tensor_without_scales() -> None:
    batch = drawn_batch(MIXED[:1], 2, 1, 40, rope_dim=8)
    batch.values = batch.keys.clone()
    with pytest.raises(ValueError, match="are one tensor"):
        batch.attend(small_launch(3))
    with pytest.raises(ValueError, match="are one tensor"):
        drawn_batch(MIXED[:1], 2, 1, 40, cache=INT8, rope_dim=8).attend(small_launch(3))
