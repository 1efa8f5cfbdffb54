"""int8, float8 and bfloat16 operands: the GPU suite's checks in every form of the launch; planted faults fail."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from triolet.kernels.gemm import gpu_epilogue, gpu_launch, gpu_launch_plain, gpu_narrow
from triolet.kernels.gemm.gpu_launch import gemm, workspace_bytes
from triolet.kernels.gemm.gpu_operands import COUNTER_BYTES
from triolet.kernels.gemm.gpu_reference import gemm_reference
from triolet.kernels.gemm.gpu_table import Few, Launch, Many
from triolet.kernels.gemm.gpu_weights import pack_bf16, pack_fp8, pack_fp32, pack_w8a8, quantise_fp8, quantise_int8
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import drawn, fault, no_worse
from triolet.loadtest.device.gpu_gemm import (
    FP8_SCALES,
    check_bf16,
    check_float32,
    check_fp8,
    check_int8,
    extras,
    float32_sums,
    fresh_workspace,
)

from .cases import MACHINE

# One of each form, small. Sizes of x and w below are no multiple of these tiles in any direction.
FEW = Few(16, 64, 128, programs=64, max_split=2, warps=4, stages=3)
POINTERS = Many(32, 64, 128, group_m=2, programs=3, warps=4, stages=3, descriptors=False)
DESCRIPTORS = Many(32, 64, 128, group_m=2, programs=3, warps=4, stages=3, descriptors=True)
HALVES = Many(32, 256, 128, group_m=1, programs=2, warps=4, stages=3, descriptors=False)
FORMS: dict[str, Launch] = {"few": FEW, "pointers": POINTERS, "descriptors": DESCRIPTORS, "halves": HALVES}
SHAPE = ROWS, N, K = 40, 144, 528


@contextmanager
def launched(form: str) -> Generator[None]:
    """Every launch takes this form."""

    def chosen(*_: object) -> Launch:
        return FORMS[form]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_launch, "launch_for", chosen)
        yield


def int8(form: str = "few", k: int = K) -> None:
    with launched(form):
        check_int8(False, (ROWS, N, k), MACHINE)


def fp8(form: str = "few", scales: str = "channel") -> None:
    with launched(form):
        check_fp8(scales, False, SHAPE, MACHINE)


def bf16(form: str = "few") -> None:
    with launched(form):
        check_bf16(False, SHAPE, MACHINE)


def logits(form: str = "few") -> None:
    with launched(form):
        check_float32("bf16", False, (5, N, K), MACHINE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("check", [int8, bf16, logits])
def test_every_form_is_right(check: Callable[[str], None], form: str) -> None:
    check(form)


# With block scales a tile is at most as wide as a block.
@pytest.mark.parametrize(
    ("form", "kind"), [(form, kind) for form in FORMS for kind in FP8_SCALES if (form, kind) != ("halves", "block")]
)
def test_float8_scales(form: str, kind: str) -> None:
    fp8(form, kind)


def test_rows_that_the_copy_engine_cannot_fetch_go_by_pointers() -> None:
    int8("descriptors", k=200)  # rows are 200 bytes apart: no multiple of 16


@pytest.mark.parametrize("rows", [1, 300])
def test_the_tables_launches_are_right(rows: int) -> None:
    check_int8(False, (rows, 128, 256), MACHINE)


def test_bfloat16_is_the_vendors_unless_strict() -> None:
    weight, x = pack_bf16(drawn(1, 128, 128)), drawn(2, 5, 128).bfloat16()
    assert torch.equal(gemm(x, weight, capability=90), x @ weight.weight.T)
    strict = gemm(x, weight, capability=80, strict=True)
    no_worse(strict, x @ weight.weight.T, gemm_reference(x, weight.weight))


@pytest.mark.parametrize("strict", [False, True], ids=["vendor", "strict"])
@pytest.mark.parametrize("capability", [80, 90])
def test_logits_are_not_rounded_to_bfloat16(strict: bool, capability: int) -> None:
    check_float32("bf16", strict, (5, N, K), replace(MACHINE, capability=capability))


def as_tf32(values: torch.Tensor) -> torch.Tensor:
    """To 11 significant bits, as a tensor core takes float32."""
    return ((values.view(torch.int32) + 0xFFF + ((values.view(torch.int32) >> 13) & 1)) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("strict", [False, True], ids=["vendor", "strict"])
def test_float32_keeps_all_its_bits(strict: bool) -> None:
    check_float32("fp32", strict, (70, N, K), MACHINE)
    weight, x, out = pack_fp32(drawn(1, N, K)), drawn(2, 70, K), torch.empty(70, N)
    float32_sums(gemm(x, weight, capability=90, strict=strict), x, weight)
    with pytest.raises(Wrong, match="a sum is off"):
        float32_sums(as_tf32(x) @ as_tf32(weight.weight).T, x, weight)
    with pytest.raises(ValueError, match=r"out is torch\.bfloat16; fp32 gives torch\.float32"):
        gemm(x, weight, capability=90, out=out.bfloat16())
    with pytest.raises(ValueError, match=r"fp32 takes no scales: its activations are torch\.float32"):
        gemm(x, weight, torch.ones(70), capability=90)


def test_torch_has_the_vendors_form_for_logits() -> None:
    """It runs on CUDA only; elsewhere torch knows the call and says so."""
    weight, x = drawn(1, N, K).bfloat16(), drawn(2, 5, K).bfloat16()
    with pytest.raises(NotImplementedError, match=r"aten::mm\.dtype_out"):
        torch.mm(x, weight.T, out_dtype=torch.float32, out=torch.empty(5, N))


def test_float32_results_take_no_bias_or_residual() -> None:
    weight, x = pack_bf16(drawn(1, N, K)), drawn(2, ROWS, K).bfloat16()
    refused = pytest.raises(ValueError, match=r"out is torch\.float32, which takes neither bias nor residual")
    more = extras(ROWS, N)
    with refused:
        gemm(x, weight, capability=90, out=torch.empty(ROWS, N), bias=more["bias"])
    with refused:
        gemm(x, weight, capability=90, out=torch.empty(ROWS, N), residual=more["residual"])
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


# Where the kernel is called by this name.
FAULTS: dict[str, tuple[ModuleType, str, str, str, Callable[[], None]]] = {
    "activation scale of another row, in blocks": (
        gpu_narrow, "narrow_sums", "w_scales, row, start", "w_scales, row - row % 2, start",
        lambda: fp8(scales="block"),
    ),
    "K tail not masked": (
        gpu_launch_plain, "narrow_gemm_kernel", "share(tl.cdiv(K, BLOCK_K))",
        "share(tl.cdiv(K, BLOCK_K)); EVEN_K = True", int8,
    ),
    "activation scale of another row": (
        gpu_epilogue, "scaled", "x_scales + row * X_PER_ROW", "x_scales + (row - row % 2) * X_PER_ROW", fp8,
    ),
    "block scale off by one": (
        gpu_narrow, "narrow_sums", "row, start, k_block,", "row, start, k_block // 2,", lambda: fp8(scales="block"),
    ),
    "weight scale of the next block of channels": (
        gpu_narrow, "narrow_sums", "row, start, k_block,", "row, 128 - start, k_block,", lambda: fp8(scales="block"),
    ),
    "float32 results rounded to bfloat16": (
        gpu_launch_plain, "narrow_gemm_kernel", "finish_tile(\n        sums,",
        "finish_tile(\n        sums.to(tl.bfloat16),", logits,
    ),
    "residual left out": (
        gpu_launch_plain, "wide_gemm_kernel", "bias, residual, row, first", "bias, None, row, first",
        lambda: int8("pointers"),
    ),
    "block scale off by one, pointers": (
        gpu_launch_plain, "wide_gemm_kernel", "row, first, k_block,", "row, first, k_block // 2,",
        lambda: fp8("pointers", "block"),
    ),
    "block scale off by one, copy engine": (
        gpu_launch_plain, "wide_gemm_kernel", "row, first, k_block,", "row, first, k_block // 2,",
        lambda: fp8("descriptors", "block"),
    ),
    "a tile left out": (
        gpu_launch_plain, "wide_gemm_kernel", "tiles_m * tiles_n, tl.num_programs(0)",
        "tiles_m * tiles_n - 1, tl.num_programs(0)", lambda: bf16("pointers"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_checks_find_a_planted_fault(name: str) -> None:
    module, kernel, old, new, check = FAULTS[name]
    with fault(module, kernel, old, new), pytest.raises(Wrong):
        check()
