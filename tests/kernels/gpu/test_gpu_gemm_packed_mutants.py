"""Faults planted in the kernels of packed weights are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triolet.kernels.gemm import gpu_epilogue, gpu_launch_packed, gpu_packed
from triolet.kernels.gemm.gpu_dequantise import w4_dequantise_kernel, w8_dequantise_kernel
from triolet.kernels.gemm.gpu_epilogue import whole
from triolet.kernels.gemm.gpu_packed import w4_sums, w8_gemm_kernel, w8_sums
from triolet.kernels.gemm.gpu_reference import dequantised
from triolet.kernels.gemm.gpu_weights import pack_w8, quantise_int8

from .gemm_cases import drawn
from .mutants import mutated
from .packed_cases import N, check_unpacked, check_w4, check_w8, w4_case

MUTANTS: dict[str, tuple[Any, Any, str, str, Callable[[], None]]] = {
    "nibbles swapped": (
        gpu_packed, w4_sums, "low, high = unpack_groups(", "high, low = unpack_groups(", check_w4,
    ),
    "group scale missing": (
        gpu_packed, w4_sums, "EVEN_K) * now", "EVEN_K)", check_w4,
    ),
    "scale of the group before": (
        gpu_packed, w4_sums, "ahead = tl.minimum(k_block + 1, k_blocks - 1)", "ahead = k_block", check_w4,
    ),
    "second group's scale for the first": (
        gpu_packed, w4_sums, "left * scale0", "left * scale1", lambda: check_w4(group=64),
    ),
    "halves of a group of 32 swapped": (
        gpu_packed, w4_sums, "low0, low1 =", "low1, low0 =", lambda: check_w4(group=32),
    ),
    "zero points ignored": (
        gpu_packed, w4_sums, "k_block * 4096), offset,", "k_block * 4096), None,",
        lambda: check_w4(symmetric=False),
    ),
    "K tail not masked": (
        gpu_packed, w4_sums, "least3, x, row, k + 96, stride_x, M, K, EVEN_K)",
        "least3, x, row, k + 96, stride_x, M, K, True)",
        lambda: check_w4(k=160, group=32),
    ),
    "K tail of bytes not masked": (
        gpu_packed, w8_sums, "sums, x, row, k, stride_x, M, K, EVEN_K)", "sums, x, row, k, stride_x, M, K, True)",
        lambda: check_w8(k=100),
    ),
    "a part left out": (
        gpu_epilogue, whole, "split > part", "split > part + 1", lambda: check_w4(k=512),
    ),
    "channel scale missing": (
        gpu_launch_packed, w8_gemm_kernel, "scales if GROUPS == 0 else None", "None", check_w8,
    ),
    "scale of another group before the product": (
        gpu_packed, w4_sums, "low * low_scale", "low * high_scale",
        lambda: check_w4(rows=65, group=64),
    ),
    "zero points ignored in unpacking": (
        gpu_launch_packed, w4_dequantise_kernel, "k_block * 4096), offset,", "k_block * 4096), None,",
        lambda: check_unpacked(*w4_case(128, 128, False)),
    ),
    "scale of the row before in unpacking": (
        gpu_launch_packed, w8_dequantise_kernel, "scales + row", "scales + row - 1",
        lambda: check_unpacked(pack_w8(drawn(2, N, 128)), dequantised(*quantise_int8(drawn(2, N, 128)))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", MUTANTS)
def test_the_checks_find_a_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, kernel, old, new, check = MUTANTS[fault]
    monkeypatch.setattr(launcher, kernel.fn.__name__, mutated(kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check()
