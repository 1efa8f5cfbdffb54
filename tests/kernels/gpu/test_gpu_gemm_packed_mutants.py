"""Faults planted in the kernels of packed weights are found."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from triolet.kernels.gemm import gpu_epilogue, gpu_launch_packed, gpu_packed
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import drawn, fault
from triolet.loadtest.device.gpu_gemm import check_packed, w4, w8

from .cases import MACHINE
from .test_gpu_gemm_packed import N, check_unpacked, check_w4


def check_w8(k: int = 192) -> None:
    check_packed(w8, False, (5, N, k), MACHINE)


# Where the kernel is called by this name.
FAULTS: dict[str, tuple[ModuleType, str, str, str, Callable[[], None]]] = {
    "nibbles swapped": (gpu_packed, "w4_sums", "low, high = unpack_groups(", "high, low = unpack_groups(", check_w4),
    "group scale missing": (gpu_packed, "w4_sums", "EVEN_K) * now", "EVEN_K)", check_w4),
    "scale of the group before": (
        gpu_packed, "w4_sums", "ahead = tl.minimum(k_block + 1, k_blocks - 1)", "ahead = k_block", check_w4,
    ),
    "second group's scale for the first": (
        gpu_packed, "w4_sums", "left * scale0", "left * scale1", lambda: check_w4(group=64),
    ),
    "halves of a group of 32 swapped": (
        gpu_packed, "w4_sums", "low0, low1 =", "low1, low0 =", lambda: check_w4(group=32),
    ),
    "zero points ignored": (
        gpu_packed, "w4_sums", "k_block * 4096), offset,", "k_block * 4096), None,", lambda: check_w4(symmetric=False),
    ),
    "K tail not masked": (
        gpu_packed, "w4_sums", "least3, x, row, k + 96, stride_x, M, K, EVEN_K)",
        "least3, x, row, k + 96, stride_x, M, K, True)", lambda: check_w4(k=160, group=32),
    ),
    "K tail of bytes not masked": (
        gpu_packed, "w8_sums", "sums, x, row, k, stride_x, M, K, EVEN_K)", "sums, x, row, k, stride_x, M, K, True)",
        lambda: check_w8(100),
    ),
    "a part left out": (gpu_epilogue, "whole", "split > part", "split > part + 1", lambda: check_w4(k=512)),
    "channel scale missing": (gpu_launch_packed, "w8_gemm_kernel", "scales if GROUPS == 0 else None", "None", check_w8),
    "scale of another group before the product": (
        gpu_packed, "w4_sums", "low * low_scale", "low * high_scale", lambda: check_w4(rows=65, group=64),
    ),
    "zero points ignored in unpacking": (
        gpu_launch_packed, "w4_dequantise_kernel", "k_block * 4096), offset,", "k_block * 4096), None,",
        lambda: check_unpacked(*w4(128, False, drawn(2, N, 128))),
    ),
    "scale of the row before in unpacking": (
        gpu_launch_packed, "w8_dequantise_kernel", "scales + row", "scales + row - 1",
        lambda: check_unpacked(*w8(drawn(2, N, 128))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_checks_find_a_planted_fault(name: str) -> None:
    module, kernel, old, new, check = FAULTS[name]
    with fault(module, kernel, old, new), pytest.raises(Wrong):
        check()
