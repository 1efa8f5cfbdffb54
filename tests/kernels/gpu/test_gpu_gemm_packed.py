"""4-bit and 8-bit weights with bfloat16 activations: every form of the launch against the float64 definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.kernels.gemm import gpu_launch_packed, gpu_launch_plain, gpu_operands, gpu_packed
from triolet.kernels.gemm.gpu_dequantise import w4_dequantise_kernel, w8_dequantise_kernel
from triolet.kernels.gemm.gpu_epilogue import reduce_kernel
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_packed import w4_sums, w8_gemm_kernel, w8_sums
from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4, gemm_reference
from triolet.kernels.gemm.gpu_table import Few, Library, launch_for, split_of
from triolet.kernels.gemm.gpu_weights import PackedLinear, pack_w4, pack_w8, quantise_int8, quantise_w4

from .gemm_cases import assert_as_good, drawn, largest_error
from .mutants import mutated

Tensor = torch.Tensor
N = 128


def rows_among_nan(rows: int, k: int) -> Tensor:
    """x whose rows are followed by NaN in memory: a read behind the last column shows."""
    wide = torch.full((rows, k + 128), torch.nan, dtype=torch.bfloat16)
    wide[:, :k] = drawn(1, rows, k).bfloat16()
    return wide[:, :k]


def w4_case(k: int, group: int, symmetric: bool, n: int = N) -> tuple[PackedLinear, Tensor]:
    """Packed weights, and what they stand for."""
    integers, scales, zeros = quantise_w4(drawn(2, n, k) + 0.3, group, symmetric)
    return pack_w4(integers, scales, zeros, group), dequantised_w4(integers, scales, zeros, group)


def check_w4(
    rows: int = 5, k: int = 256, group: int = 128, symmetric: bool = True, *, n: int = N,
    capability: int = 90, extras: bool = False,
) -> None:  # fmt: skip
    weight, meant = w4_case(k, group, symmetric, n)
    x = rows_among_nan(rows, k)
    bias, residual = (drawn(3, n).bfloat16(), drawn(4, rows, n).bfloat16()) if extras else (None, None)
    workspace = torch.full((workspace_bytes(weight, rows, capability),), 255, dtype=torch.uint8)  # NaN
    out = torch.full((rows, n), torch.nan, dtype=torch.bfloat16)
    gemm(x, weight, capability=capability, out=out, workspace=workspace, bias=bias, residual=residual)
    plain = x @ meant.bfloat16().T
    if bias is not None and residual is not None:
        plain = plain + bias + residual
    assert_as_good(out, plain, gemm_reference(x, meant, bias, residual))


def check_w8(rows: int = 5, k: int = 192, *, n: int = N, extras: bool = False) -> None:
    values = drawn(2, n, k)
    weight, meant = pack_w8(values), dequantised(*quantise_int8(values))
    x = rows_among_nan(rows, k)
    bias, residual = (drawn(3, n).bfloat16(), drawn(4, rows, n).bfloat16()) if extras else (None, None)
    out = gemm(x, weight, capability=90, bias=bias, residual=residual)
    plain = x @ meant.bfloat16().T
    if bias is not None and residual is not None:
        plain = plain + bias + residual
    assert_as_good(out, plain, gemm_reference(x, meant, bias, residual))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])
def test_w4_groups_and_zero_points(group: int, symmetric: bool) -> None:
    check_w4(group=group, symmetric=symmetric)


@pytest.mark.parametrize("rows", [1, 17, 40, 70])
def test_w4_in_every_bucket_with_split_bias_and_residual(rows: int) -> None:
    check_w4(rows, k=512, extras=True)


@pytest.mark.parametrize("rows", [1, 65])
def test_w4_with_a_part_that_has_no_columns(rows: int) -> None:
    weight = w4_case(9 * 128, 128, False)[0]
    launch = launch_for("w4a16", 90, rows, strict=False)
    assert isinstance(launch, Few)
    assert split_of(launch, weight.n, weight.k) == 4  # nine blocks: three, three, three, none
    check_w4(rows, k=weight.k, symmetric=False)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])
def test_w4_scaled_before_the_product(group: int, symmetric: bool) -> None:
    check_w4(rows=65, k=160 if group == 32 else 256, group=group, symmetric=symmetric)


@pytest.mark.parametrize(("k", "group"), [(160, 32), (192, 64)])
def test_w4_sizes_that_are_no_multiple_of_a_tile(k: int, group: int) -> None:
    check_w4(k=k, group=group, n=200, symmetric=False, extras=True)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])
def test_w4_of_many_rows_is_unpacked_exactly(group: int, symmetric: bool) -> None:
    k = 160 if group == 32 else 128
    weight, meant = w4_case(k, group, symmetric, n=200)
    check_unpacked(weight, meant)


def check_unpacked(weight: PackedLinear, meant: Tensor) -> None:
    """x = identity, and many rows of nothing: the product is the unpacked matrix, rounded once."""
    x = torch.eye(300, weight.k, dtype=torch.bfloat16)
    out = gemm(x, weight, capability=90)
    assert torch.equal(out[: weight.k], meant.T.float().bfloat16())
    assert isinstance(launch_for(weight.format, 90, len(x), strict=False), Library)


def slabs_of_128(*_: object) -> int:
    return 128


def test_slabs_of_channels_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, meant = w4_case(128, 128, True, n=300)
    monkeypatch.setattr(gpu_launch_packed, "slab_rows", slabs_of_128)
    check_unpacked(weight, meant)


@pytest.mark.parametrize(("rows", "k"), [(1, 192), (20, 256), (5, 100)])
def test_w8(rows: int, k: int) -> None:
    check_w8(rows, k, extras=True)


def test_w8_of_many_rows_is_unpacked_exactly() -> None:
    values = drawn(2, 200, 100)
    check_unpacked(pack_w8(values), dequantised(*quantise_int8(values)))


def test_float32_results_are_not_rounded_to_bfloat16() -> None:
    k = 512
    weight, meant = w4_case(k, 128, False)
    x = rows_among_nan(5, k)
    out = gemm(x, weight, capability=90, out=torch.full((5, N), torch.nan))
    exact = gemm_reference(x, meant)
    # Integers and products are exact: each of K - 1 additions and 4 scalings rounds by 2^-24 of at most what all sizes
    # sum up to. With zero points a group's integers are summed before they are scaled, all of one scale: no larger.
    bound = (k + 4) * 2**-24 * float(gemm_reference(x.abs(), meant.abs()).max())
    assert largest_error(out, exact) <= bound
    assert largest_error(out.bfloat16(), exact) > 10 * bound


def test_float32_results_of_many_rows_go_slab_by_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, meant = w4_case(128, 128, True, n=300)
    monkeypatch.setattr(gpu_launch_packed, "slab_rows", slabs_of_128)
    out = gemm(torch.eye(300, 128).bfloat16(), weight, capability=90, out=torch.full((300, 300), torch.nan))
    assert torch.equal(out[:128], meant.T.float().bfloat16().float())


def test_every_signed_byte_unpacks_to_itself() -> None:
    k = 256
    values = torch.arange(-127, 128).repeat(N, 2)[:, :k].float()  # scale 1: all integers stand for themselves
    check_unpacked(pack_w8(values), values.double())


def test_many_rows_take_a_bounded_workspace_in_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = pack_w8(drawn(2, N, 256)), rows_among_nan(70, 256)
    whole = gemm(x, weight, capability=90, strict=True)
    for module in (gpu_launch_packed, gpu_operands):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 32)
    workspace = torch.empty(workspace_bytes(weight, 1000, 90, strict=True), dtype=torch.uint8)
    assert len(workspace) == 4 * 2 * 32 * N  # two parts
    assert torch.equal(gemm(x, weight, capability=90, strict=True, workspace=workspace), whole)


def test_packing_refuses_what_does_not_fit() -> None:
    integers, scales, zeros = quantise_w4(drawn(2, N, 128), 32, False)
    assert zeros is not None
    with pytest.raises(ValueError, match=r"zeros are \[128, 3\]"):
        pack_w4(integers, scales, zeros[:, :3], 32)
    with pytest.raises(ValueError, match="group of 48"):
        quantise_w4(drawn(2, N, 96), 48, True)


def test_what_does_not_fit_is_refused() -> None:
    weight = w4_case(256, 128, True)[0]
    x = rows_among_nan(2, 256)
    with pytest.raises(ValueError, match=r"\[rows, 256\]"):
        gemm(x[:, :128], weight, capability=90)
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        gemm(x.float(), weight, capability=90)
    with pytest.raises(ValueError, match="w4a16 takes no scales"):
        gemm(x, weight, torch.ones(2), capability=90)
    small, split = torch.empty(4, dtype=torch.uint8), w4_case(512, 128, True)[0]
    with pytest.raises(ValueError, match="workspace_bytes"):
        gemm(rows_among_nan(2, 512), split, capability=90, workspace=small)


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
        gpu_launch_plain, reduce_kernel, "static_range(1, SPLIT)", "static_range(1, SPLIT - 1)",
        lambda: check_w4(k=512),
    ),
    "channel scale missing": (
        gpu_launch_packed, w8_gemm_kernel, "sums *= tl.load(scales + channel)[:, None]", "pass", check_w8,
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
