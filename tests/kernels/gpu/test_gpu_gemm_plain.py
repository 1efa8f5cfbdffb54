"""int8, float8 and bfloat16 operands: exact integer sums, every kind of scale, every form of the launch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.kernels.gemm import gpu_epilogue, gpu_launch, gpu_launch_plain, gpu_narrow
from triolet.kernels.gemm.gpu_epilogue import scaled
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_narrow import narrow_gemm_kernel, narrow_sums
from triolet.kernels.gemm.gpu_operands import COUNTER_BYTES
from triolet.kernels.gemm.gpu_reference import dequantised, gemm_reference
from triolet.kernels.gemm.gpu_table import Few, Launch, Many
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_fp32,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
)
from triolet.kernels.gemm.gpu_wide import wide_gemm_kernel

from .gemm_cases import assert_as_good, drawn, fresh_workspace, largest_error
from .mutants import mutated

Tensor = torch.Tensor
# One of each form, small. Sizes of x and w below are no multiple of these tiles in any direction.
FEW = Few(16, 64, 128, programs=64, max_split=2, warps=4, stages=3)
POINTERS = Many(32, 64, 128, group_m=2, programs=3, warps=4, stages=3, descriptors=False)
DESCRIPTORS = Many(32, 64, 128, group_m=2, programs=3, warps=4, stages=3, descriptors=True)
HALVES = Many(32, 256, 128, group_m=1, programs=2, warps=4, stages=3, descriptors=False)
FORMS: dict[str, Launch] = {"few": FEW, "pointers": POINTERS, "descriptors": DESCRIPTORS, "halves": HALVES}
ROWS, N, K = 40, 144, 528
SCALES = {"tensor": ((0, 0), (0, 0)), "token and channel": ((1, 0), (1, 0)), "blocks": ((1, 128), (128, 128))}


@contextmanager
def launched(form: str) -> Generator[None]:
    """Every launch takes this form."""

    def chosen(*_: object) -> Launch:
        return FORMS[form]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_launch, "launch_for", chosen)
        yield


def uneven(rows: int, k: int) -> Tensor:
    """Rows of very different sizes: a scale of the wrong row shows."""
    return drawn(1, rows, k) * torch.linspace(0.1, 9, rows)[:, None]


def extras() -> tuple[Tensor, Tensor]:
    return drawn(3, N).bfloat16(), drawn(4, ROWS, N).bfloat16()


def check_int8(form: str = "few", k: int = K) -> None:
    values = uneven(N, k)
    weight, (integers, scales) = pack_w8a8(values), quantise_int8(values)
    x, x_scales = quantise_int8(uneven(ROWS, k))
    bias, residual = extras()
    with launched(form):
        out = gemm(x, weight, x_scales, capability=90, bias=bias, residual=residual)
    exact = (x.long() @ integers.long().T).float() * x_scales[:, None] * scales[None, :]
    assert torch.equal(out, (exact + bias.float() + residual.float()).bfloat16())


def check_fp8(form: str = "few", kind: str = "token and channel", k: int = K) -> None:
    of_x, of_weight = SCALES[kind]
    # Blocks of 128 columns differ in size, so that a scale of another block shows.
    sizes = (1.0 + torch.arange(k) // 128)[None, :]
    weight = pack_fp8(*quantise_fp8(uneven(N, k) * sizes, *of_weight))
    x, x_scales = quantise_fp8(uneven(ROWS, k) / sizes, *of_x)
    assert weight.scales is not None
    bias, residual = extras()
    with launched(form):
        out = gemm(x, weight, x_scales, capability=90, bias=bias, residual=residual)
    meant = dequantised(x, x_scales), dequantised(weight.weight, weight.scales)
    plain = (meant[0].float() @ meant[1].float().T + bias.float() + residual.float()).bfloat16()
    assert_as_good(out, plain, gemm_reference(*meant, bias, residual))


def check_bf16(form: str = "few", k: int = K) -> None:
    weight, x = pack_bf16(uneven(N, k)), uneven(ROWS, k).bfloat16()
    bias, residual = extras()
    out = torch.full((ROWS, N), torch.nan, dtype=torch.bfloat16)  # what is not written shows
    with launched(form):
        gemm(x, weight, capability=90, bias=bias, residual=residual, out=out)
    plain = x @ weight.weight.T + bias + residual
    assert_as_good(out, plain, gemm_reference(x, weight.weight, bias, residual))


@pytest.mark.parametrize("form", FORMS)
def test_int8_sums_are_exact(form: str) -> None:
    check_int8(form)


# With block scales a tile is at most as wide as a block.
@pytest.mark.parametrize(
    ("form", "kind"), [(form, kind) for form in FORMS for kind in SCALES if (form, kind) != ("halves", "blocks")]
)
def test_float8_scales(form: str, kind: str) -> None:
    check_fp8(form, kind)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16(form: str) -> None:
    check_bf16(form)


def test_rows_that_the_copy_engine_cannot_fetch_go_by_pointers() -> None:
    check_int8("descriptors", k=200)  # rows are 200 bytes apart: no multiple of 16


@pytest.mark.parametrize("rows", [1, 300])
def test_the_tables_launches_are_right(rows: int) -> None:
    weight, x = pack_w8a8(drawn(1, 128, 256)), quantise_int8(drawn(2, rows, 256))
    assert weight.scales is not None
    out = gemm(x[0], weight, x[1], capability=90)
    exact = (x[0].long() @ weight.weight.long().T).float() * x[1][:, None] * weight.scales[None, :]
    assert torch.equal(out, exact.bfloat16())


def test_bfloat16_is_the_vendors_unless_strict() -> None:
    weight, x = pack_bf16(drawn(1, 128, 128)), drawn(2, 5, 128).bfloat16()
    assert torch.equal(gemm(x, weight, capability=90), x @ weight.weight.T)
    strict = gemm(x, weight, capability=80, strict=True)
    assert_as_good(strict, x @ weight.weight.T, gemm_reference(x, weight.weight))


def check_float32(out: Tensor, x: Tensor, weight: PackedLinear) -> None:
    """As good as float32 sums of K products in any order are: the K - 1 additions each round by at most 2^-24 of what
    they hold, which is never more than the sum of the products' sizes. Rounded to bfloat16 (2^-9) it is further off.
    """
    exact = gemm_reference(x, weight.weight)
    bound = weight.k * 2**-24 * float(gemm_reference(x.abs(), weight.weight.abs()).max())
    assert out.dtype == torch.float32
    assert largest_error(out, exact) <= bound
    assert largest_error(out.bfloat16(), exact) > 10 * bound


@pytest.mark.parametrize("strict", [False, True], ids=["vendor", "strict"])
@pytest.mark.parametrize("capability", [80, 90])
def test_logits_are_not_rounded_to_bfloat16(strict: bool, capability: int) -> None:
    weight, x = pack_bf16(drawn(1, N, K)), drawn(2, 5, K).bfloat16()
    out = torch.full((5, N), torch.nan)
    assert gemm(x, weight, capability=capability, out=out, strict=strict) is out
    check_float32(out, x, weight)


def as_tf32(values: Tensor) -> Tensor:
    """To 11 significant bits, as a tensor core takes float32."""
    return ((values.view(torch.int32) + 0xFFF + ((values.view(torch.int32) >> 13) & 1)) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("strict", [False, True], ids=["vendor", "strict"])
def test_float32_keeps_all_its_bits(strict: bool) -> None:
    weight, x = pack_fp32(drawn(1, N, K)), drawn(2, 70, K)
    out = torch.full((70, N), torch.nan)
    assert gemm(x, weight, capability=90, out=out, strict=strict) is out
    check_float32(out, x, weight)
    with pytest.raises(AssertionError):
        check_float32(as_tf32(x) @ as_tf32(weight.weight).T, x, weight)
    with pytest.raises(ValueError, match=r"out is torch\.bfloat16; fp32 gives torch\.float32"):
        gemm(x, weight, capability=90, out=out.bfloat16())
    with pytest.raises(ValueError, match=r"fp32 takes no scales: its activations are torch\.float32"):
        gemm(x, weight, torch.ones(70), capability=90)


def test_torch_has_the_vendors_form_for_logits() -> None:
    """It runs on CUDA only; elsewhere torch knows the call and says so."""
    weight, x = drawn(1, N, K).bfloat16(), drawn(2, 5, K).bfloat16()
    with pytest.raises(NotImplementedError, match=r"aten::mm\.dtype_out"):
        torch.mm(x, weight.T, out_dtype=torch.float32, out=torch.empty(5, N))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_stores_float32(form: str) -> None:
    weight, x = pack_bf16(drawn(1, N, K)), drawn(2, 5, K).bfloat16()
    with launched(form):
        out = gemm(x, weight, capability=90, out=torch.full((5, N), torch.nan))
    check_float32(out, x, weight)


def test_float32_results_take_no_bias_or_residual() -> None:
    weight, x = pack_bf16(drawn(1, N, K)), drawn(2, ROWS, K).bfloat16()
    bias, residual = extras()
    options: list[dict[str, Any]] = [{"bias": bias}, {"residual": residual}]  # Any: options of several types
    for added in options:
        with pytest.raises(ValueError, match=r"out is torch\.float32, which takes neither bias nor residual"):
            gemm(x, weight, capability=90, out=torch.empty(ROWS, N), **added)
    with pytest.raises(ValueError, match=r"out is torch\.float16; it must be torch\.bfloat16"):
        gemm(x, weight, capability=90, out=torch.empty(ROWS, N, dtype=torch.float16))


def test_the_workspace_serves_every_smaller_batch() -> None:
    weight = pack_w8a8(drawn(1, 128, 512))
    size = workspace_bytes(weight, 40, 90)
    workspace = fresh_workspace(size)
    for rows in (1, 16, 17, 40):
        x, x_scales = quantise_int8(drawn(2, rows, 512))
        gemm(x, weight, x_scales, capability=90, workspace=workspace)
    assert size == COUNTER_BYTES + 4 * 2 * 40 * 128  # two int32 parts


def test_what_does_not_fit_is_refused() -> None:
    weight = pack_fp8(*quantise_fp8(drawn(1, 128, 256), 128, 128))
    x, scales = quantise_fp8(drawn(2, 3, 256), 1, 0)
    with pytest.raises(ValueError, match=r"8\.9 or newer and this device has 8\.0"):
        gemm(x, weight, scales, capability=80)
    with pytest.raises(ValueError, match=r"scales of x are \[3\] torch.float32; these weights need \[3, 2\]"):
        gemm(x, weight, scales, capability=90)
    with pytest.raises(ValueError, match="must be e4m3"):
        pack_fp8(drawn(1, 128, 256), scales)
    with pytest.raises(ValueError, match="out is"):
        gemm(drawn(1, 3, 128).bfloat16(), pack_bf16(drawn(1, 128, 128)), capability=90, out=torch.empty(2, 128))


WIDE, NARROW, SUMS, SCALED = wide_gemm_kernel, narrow_gemm_kernel, narrow_sums, scaled
PLACES = {SUMS: gpu_narrow, SCALED: gpu_epilogue}  # where each is called by its name; else in the launcher
MUTANTS: dict[str, tuple[Any, str, str, Callable[[], None]]] = {
    "activation scale of another row, in blocks": (
        SUMS, "w_scales, row, start", "w_scales, row - row % 2, start", lambda: check_fp8(kind="blocks"),
    ),
    "K tail not masked": (
        NARROW, "share(tl.cdiv(K, BLOCK_K))", "share(tl.cdiv(K, BLOCK_K)); EVEN_K = True", check_int8,
    ),
    "activation scale of another row": (
        SCALED, "x_scales + row * X_PER_ROW", "x_scales + (row - row % 2) * X_PER_ROW", check_fp8,
    ),
    "block scale off by one": (
        SUMS, "row, start, k_block,", "row, start, k_block // 2,", lambda: check_fp8(kind="blocks"),
    ),
    "weight scale of the next block of channels": (
        SUMS, "row, start, k_block,", "row, 128 - start, k_block,", lambda: check_fp8(kind="blocks"),
    ),
    "float32 results rounded to bfloat16": (
        NARROW, "finish_tile(\n        sums,", "finish_tile(\n        sums.to(tl.bfloat16),",
        lambda: test_every_form_stores_float32("few"),
    ),
    "residual left out": (WIDE, "bias, residual, row, first", "bias, None, row, first", lambda: check_int8("pointers")),
    "block scale off by one, pointers": (
        WIDE, "row, first, k_block,", "row, first, k_block // 2,", lambda: check_fp8("pointers", "blocks"),
    ),
    "block scale off by one, copy engine": (
        WIDE, "row, first, k_block,", "row, first, k_block // 2,", lambda: check_fp8("descriptors", "blocks"),
    ),
    "a tile left out": (
        WIDE, "tiles_m * tiles_n, tl.num_programs(0)", "tiles_m * tiles_n - 1, tl.num_programs(0)",
        lambda: check_bf16("pointers"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", MUTANTS)
def test_the_checks_find_a_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, old, new, check = MUTANTS[fault]
    monkeypatch.setattr(PLACES.get(kernel, gpu_launch_plain), kernel.fn.__name__, mutated(kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check()
