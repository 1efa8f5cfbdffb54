"""4-bit and 8-bit weights with bfloat16 activations: the GPU suite's check in every form of the launch."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.gemm import gpu_launch_packed, gpu_operands
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_reference import dequantised, gemm_reference
from triolet.kernels.gemm.gpu_table import Few, Library, launch_for, split_of
from triolet.kernels.gemm.gpu_weights import PackedLinear, pack_w4, pack_w8, quantise_int8, quantise_w4
from triolet.loadtest.device.gpu_check import drawn, equal
from triolet.loadtest.device.gpu_gemm import check_packed, fresh_workspace, rows_among_nan, w4, w8

from .cases import MACHINE

N = 128


def check_w4(rows: int = 5, k: int = 256, group: int = 128, symmetric: bool = True, n: int = N) -> None:
    def pack(values: torch.Tensor) -> tuple[PackedLinear, torch.Tensor]:
        return w4(group, symmetric, values)

    check_packed(pack, False, (rows, n, k), MACHINE)


def check_unpacked(weight: PackedLinear, meant: torch.Tensor) -> None:
    """x = identity, and many rows of nothing: the product is the unpacked matrix, rounded once."""
    x = torch.eye(1025, weight.k, dtype=torch.bfloat16)
    equal(gemm(x, weight, capability=90)[: weight.k], meant.T.float().bfloat16(), "the unpacked matrix")
    assert isinstance(launch_for(weight.format, 90, len(x), strict=False), Library)


GROUPS = pytest.mark.parametrize("group", [32, 64, 128])
SYMMETRIC = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])


@GROUPS
@SYMMETRIC
@pytest.mark.parametrize("rows", [5, 65], ids=["scaled after the product", "before"])
def test_w4_groups_and_zero_points(group: int, symmetric: bool, rows: int) -> None:
    check_w4(rows, 160 if (rows, group) == (65, 32) else 256, group, symmetric)


@pytest.mark.parametrize("rows", [1, 17, 40, 70, 257])
def test_w4_in_every_bucket_and_in_several_launches(rows: int) -> None:
    check_w4(rows, 512, symmetric=rows < 257)


@pytest.mark.parametrize("rows", [1, 65])
def test_w4_with_a_part_that_has_no_columns(rows: int) -> None:
    launch, k = launch_for("w4a16", 90, rows, strict=False), 9 * 128
    assert isinstance(launch, Few)
    assert split_of(launch, N, k) == 4  # nine blocks: three, three, three, none
    check_w4(rows, k, symmetric=False)


@pytest.mark.parametrize(("k", "group"), [(160, 32), (192, 64)])
def test_w4_sizes_that_are_no_multiple_of_a_tile(k: int, group: int) -> None:
    check_w4(k=k, group=group, n=200, symmetric=False)


@GROUPS
@SYMMETRIC
def test_w4_of_many_rows_is_unpacked_exactly(group: int, symmetric: bool) -> None:
    check_unpacked(*w4(group, symmetric, drawn(2, 200, 160 if group == 32 else 128)))


def slabs_of_128(*_: object) -> int:
    return 128


def test_slabs_of_channels_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, meant = w4(128, True, drawn(2, 300, 128))
    monkeypatch.setattr(gpu_launch_packed, "slab_rows", slabs_of_128)
    check_unpacked(weight, meant)


@pytest.mark.parametrize(("rows", "k"), [(1, 192), (20, 256), (5, 100)])
def test_w8(rows: int, k: int) -> None:
    check_packed(w8, False, (rows, N, k), MACHINE)


def test_w8_of_many_rows_is_unpacked_exactly() -> None:
    values = drawn(2, 200, 100)
    check_unpacked(pack_w8(values), dequantised(*quantise_int8(values)))


def test_float32_results_are_not_rounded_to_bfloat16() -> None:
    k = 512
    weight, meant = w4(128, False, drawn(2, N, k))
    x = rows_among_nan(5, k)
    out = gemm(x, weight, capability=90, out=torch.full((5, N), torch.nan))
    exact = gemm_reference(x, meant)
    # Integers and products are exact: each of K - 1 additions and 4 scalings rounds by 2^-24 of at most what all sizes
    # sum up to. With zero points a group's integers are summed before they are scaled, all of one scale: no larger.
    bound = (k + 4) * 2**-24 * float(gemm_reference(x.abs(), meant.abs()).max())
    assert bool(((out - exact).abs() <= bound).all())
    assert bool(((out.bfloat16() - exact).abs() > 10 * bound).any())


def test_float32_results_of_many_rows_go_slab_by_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, meant = w4(128, True, drawn(2, 300, 128))
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
    weight = w4(128, True, drawn(2, N, 256))[0]
    x = rows_among_nan(2, 256)
    with pytest.raises(ValueError, match=r"\[rows, 256\]"):
        gemm(x[:, :128], weight, capability=90)
    with pytest.raises(ValueError, match=r"takes torch\.bfloat16"):
        gemm(x.float(), weight, capability=90)
    with pytest.raises(ValueError, match="w4a16 takes no scales"):
        gemm(x, weight, torch.ones(2), capability=90)
    small, split = torch.empty(4, dtype=torch.uint8), w4(128, True, drawn(2, N, 512))[0]
    with pytest.raises(ValueError, match="workspace_bytes"):
        gemm(rows_among_nan(2, 512), split, capability=90, workspace=small)
