"""Inline assembly against the numpy functions that stand for it where kernels are interpreted: with every code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triolet.kernels.gemm import gpu_fragment
from triolet.kernels.gpu.interpreter import emulations
from triolet.kernels.paged_attention import gpu_codes

from .ptx import Words, evaluate, halves, word

of_cache: Any = gpu_codes  # Any: Triton's constants have no types
of_weights: Any = gpu_fragment
CODES: dict[str, str] = {
    "int8": of_cache.INT8.value,
    "e4m3": of_cache.E4M3.value,
    "e4m3 bits": of_cache.E4M3_BITS.value,
}
SYMMETRIC, SIGNED, ZEROS = (
    str(of_weights.SYMMETRIC.value),
    str(of_weights.SIGNED_BYTES.value),
    str(of_weights.ZERO_POINTS.value),
)
ALL = np.arange(65536, dtype=np.uint32)
OTHERS = ALL * 40503 % 65536  # the same in another order


def differences(assembly: str, packed: Words, wanted: list[Words]) -> int:
    """In how many of its outputs, for any of its inputs, a snippet differs from these bits."""
    found = evaluate(assembly, len(wanted), packed)
    return sum(not np.array_equal(*pair) for pair in zip(found, wanted, strict=True))


def of_pairs(assembly: str, packed: Words) -> list[Words]:
    """What the emulation makes of registers with two pairs of codes, as the snippet should give it."""
    pairs = np.stack(halves(packed)).astype(np.uint16).view(np.int16)
    results = (np.asarray(numbers).view(np.uint16).astype(np.uint32) for numbers in emulations[assembly](pairs))
    return [word(*numbers) for numbers in results]


def of_bytes(assembly: str, packed: Words, *offsets: Words) -> list[Words]:
    """The same of registers with four bytes, for snippets that give one bfloat16 or two for each."""
    codes = np.stack([packed >> 8 * place & 0xFF for place in range(4)]).astype(np.uint8)
    results = np.asarray(emulations[assembly](codes, *offsets), np.uint32)
    return [word(*part) for part in results.reshape(-1, 2, len(packed))]


@pytest.mark.parametrize("name", CODES)
def test_pairs_of_codes_of_the_cache(name: str) -> None:
    packed = word(ALL, OTHERS)
    if name == "e4m3":  # whose NaN is any of several
        packed = packed[np.all([packed >> 8 * place & 0x7F != 0x7F for place in range(4)], axis=0)]
    assert differences(CODES[name], packed, of_pairs(CODES[name], packed)) == 0


@pytest.mark.parametrize("assembly", [SYMMETRIC, SIGNED])
def test_bytes_of_weights(assembly: str) -> None:
    packed = word(ALL, OTHERS)
    assert differences(assembly, packed, of_bytes(assembly, packed)) == 0


@pytest.mark.parametrize("zero", range(16))
def test_bytes_of_weights_with_zero_points(zero: int) -> None:
    assembly, packed = ZEROS, word(ALL, OTHERS)
    offset = np.uint32((np.array(-128.0 - zero, np.float32).view(np.uint32) >> 16).item())
    wanted = of_bytes(assembly, packed, *(np.full((4, len(packed)), offset) for _ in range(2)))
    pairs = [np.full(len(packed), offset | offset << 16, np.uint32)] * 4
    found = evaluate(assembly, 4, packed, *pairs)
    assert all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("int8", "0x4341", "0x4314"),
        ("e4m3", "0x3120", "0x3210"),
        ("e4m3 bits", "0xea", "0xca"),
        ("e4m3 bits", "0x5c005c00", "0x5bff5c00"),
    ],
)
def test_a_planted_fault_is_seen(name: str, old: str, new: str) -> None:
    packed = word(ALL, OTHERS) & np.uint32(0x3F3F3F3F)
    assert differences(CODES[name].replace(old, new), packed, of_pairs(CODES[name], packed))
