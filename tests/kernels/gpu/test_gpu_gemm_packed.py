"""4-bit and 8-bit weights with bfloat16 activations: every form of the launch against the float64 definition."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.gemm import gpu_launch_packed, gpu_operands
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_reference import dequantised, gemm_reference
from triolet.kernels.gemm.gpu_table import Few, launch_for, split_of
from triolet.kernels.gemm.gpu_weights import pack_w4, pack_w8, quantise_int8, quantise_w4

from .gemm_cases import drawn, fresh_workspace, largest_error, rows_among_nan
from .packed_cases import N, check_unpacked, check_w4, check_w8, w4_case


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


def test_w4_of_several_launches() -> None:
    check_w4(rows=257, k=512, symmetric=False, extras=True)


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
    out = gemm(torch.eye(1025, 128).bfloat16(), weight, capability=90, out=torch.full((1025, 300), torch.nan))
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
    workspace = fresh_workspace(workspace_bytes(weight, 1000, 90, strict=True))
    assert len(workspace) == gpu_operands.COUNTER_BYTES + 4 * 2 * 32 * N  # two parts
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
