"""Correctness of the GEMMs on the device: every weight format in every bucket of rows, against float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from triolet.kernels.gemm import gpu_launch_packed
from triolet.kernels.gemm.gpu_launch import bf16_gemm, fp8_gemm, w4a16_gemm, w8a8_gemm, w8a16_gemm, workspace_bytes
from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4, gemm_reference
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_w4,
    pack_w8,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from triolet.loadtest.device.gpu_case import Case, Figures, Machine
from triolet.loadtest.device.gpu_check import drawn, equal, fault, no_worse, within

Tensor = torch.Tensor
Shape = tuple[int, int, int]  # M, N, K
FP8_SCALES = {"tensor": ((0, 0), (0, 0)), "channel": ((1, 0), (1, 0)), "block": ((1, 128), (128, 128))}


def rows_among_nan(rows: int, k: int) -> Tensor:
    """x whose rows are followed by NaN in memory: a read behind the last column shows."""
    wide = torch.full((rows, k + 128), torch.nan, dtype=torch.bfloat16)
    wide[:, :k] = drawn(1, rows, k)
    return wide[:, :k]


def extras(shape: Shape) -> tuple[Tensor, Tensor]:
    m, n, _ = shape
    return drawn(3, n).bfloat16(), drawn(4, m, n).bfloat16()


def check_packed(
    pack: Callable[[Tensor], tuple[PackedLinear, Tensor]], strict: bool, shape: Shape, machine: Machine
) -> Figures:
    """4-bit or 8-bit weights, bfloat16 rows; the workspace starts as NaN."""
    m, n, k = shape
    weight, meant = pack(drawn(2, n, k) + 0.3)
    x, (bias, residual) = rows_among_nan(m, k), extras(shape)
    workspace = torch.full((workspace_bytes(weight, m, machine.capability, strict),), 255, dtype=torch.uint8)
    gemm = w4a16_gemm if weight.format == "w4a16" else w8a16_gemm
    out = gemm(
        x, weight, capability=machine.capability, workspace=workspace, bias=bias, residual=residual, strict=strict
    )  # fmt: skip
    plain = x @ meant.bfloat16().T + bias + residual
    return no_worse(out, plain, gemm_reference(x, meant, bias, residual))


def w4(group: int, symmetric: bool, values: Tensor) -> tuple[PackedLinear, Tensor]:
    integers, scales, zeros = quantise_w4(values, group, symmetric)
    return pack_w4(integers, scales, zeros, group), dequantised_w4(integers, scales, zeros, group)


def w8(values: Tensor) -> tuple[PackedLinear, Tensor]:
    return pack_w8(values), dequantised(*quantise_int8(values))


def uneven(rows: int, k: int) -> Tensor:
    """Rows of very different sizes: a scale of the wrong row shows."""
    return drawn(1, rows, k) * torch.linspace(0.1, 9, rows)[:, None]


def check_int8(strict: bool, shape: Shape, machine: Machine) -> Figures:
    """The integer sums are exact, so the result is known to the bit."""
    m, n, k = shape
    values = uneven(n, k)
    weight, (integers, scales) = pack_w8a8(values), quantise_int8(values)
    x, x_scales = quantise_int8(uneven(m, k))
    bias, residual = extras(shape)
    out = w8a8_gemm(x, x_scales, weight, capability=machine.capability, bias=bias, residual=residual, strict=strict)
    sums = (x.double() @ integers.double().T).float()  # below 2**53: exact
    exact = sums * x_scales[:, None] * scales[None, :] + bias.float() + residual.float()
    if machine.dry:
        equal(out, exact.bfloat16(), "y")
        return {"error": 0.0}
    # A GPU may fuse the last product and sum: half a unit of bfloat16 either way where a tie is met.
    return no_worse(out, exact.bfloat16(), exact.double())


def check_fp8(scales: str, strict: bool, shape: Shape, machine: Machine) -> Figures:
    machine.need_float8()
    m, n, k = shape
    of_x, of_weight = FP8_SCALES[scales]
    weight = pack_fp8(*quantise_fp8(uneven(n, k), *of_weight))
    x, x_scales = quantise_fp8(uneven(m, k), *of_x)
    assert weight.scales is not None
    bias, residual = extras(shape)
    out = fp8_gemm(x, x_scales, weight, capability=machine.capability, bias=bias, residual=residual, strict=strict)
    meant = dequantised(x, x_scales), dequantised(weight.weight, weight.scales)
    plain = (meant[0].float() @ meant[1].float().T + bias.float() + residual.float()).bfloat16()
    return no_worse(out, plain, gemm_reference(*meant, bias, residual))


def check_bf16(strict: bool, shape: Shape, machine: Machine) -> Figures:
    m, n, k = shape
    weight, x = pack_bf16(uneven(n, k)), uneven(m, k).bfloat16()
    bias, residual = extras(shape)
    out = bf16_gemm(x, weight, capability=machine.capability, bias=bias, residual=residual, strict=strict)
    plain = x @ weight.weight.T + bias + residual
    return no_worse(out, plain, gemm_reference(x, weight.weight, bias, residual))


def check_logits(strict: bool, shape: Shape, machine: Machine) -> Figures:
    """bfloat16 operands whose sums are kept as float32: the head. Only the order of sums is free."""
    m, n, k = shape
    weight, x = pack_bf16(uneven(n, k)), uneven(m, k).bfloat16()
    out = torch.full((m, n), torch.nan, dtype=torch.float32)
    bf16_gemm(x, weight, capability=machine.capability, out=out, strict=strict)
    exact = gemm_reference(x, weight.weight, None, None)
    allowed = 2 * k * 2.0**-24 * (x.double().abs() @ weight.weight.double().abs().T)
    return {"error": within(out, exact, allowed, "a logit"), "allowed": float(allowed.max())}


def planted(name: str, old: str, new: str, machine: Machine) -> Figures:
    with fault(gpu_launch_packed, name, old, new):
        return check_packed(partial(w4, 128, True), False, (5, 128, 256), machine)


def cases(dry: bool) -> list[Case]:
    either: dict[str, Callable[[bool, Shape, Machine], Figures]] = {
        "w4 group 128": partial(check_packed, partial(w4, 128, True)),
        "w4 group 128 zeros": partial(check_packed, partial(w4, 128, False)),
        "w4 group 64 zeros": partial(check_packed, partial(w4, 64, False)),
        "w4 group 32": partial(check_packed, partial(w4, 32, True)),
        "w8": partial(check_packed, w8),
        "int8": check_int8,
        **{f"fp8 by {scales}": partial(check_fp8, scales) for scales in FP8_SCALES},
        "bf16": check_bf16,
        "logits": check_logits,
    }
    checks = {
        f"{name}{' strict' if strict else ''}": partial(check, strict)
        for name, check in either.items()
        for strict in (False, True)
    }
    found = [
        _case(name, check, (rows, 128 if dry else 200, 256 if dry else _uneven_k(name)))
        for name, check in checks.items()
        for rows in ((5,) if dry else (1, 40, 300))
    ]
    if dry:
        found.append(_case("w4 group 128 zeros", checks["w4 group 128 zeros"], (65, 128, 256)))
    else:
        serving: list[Shape] = [(rows, 4096, 4096) for rows in (1, 16, 32, 64, 128, 256, 2048)]
        found += [
            _case(name, checks[name], shape)
            for name in ("w4 group 128 zeros", "w8", "int8", "fp8 by channel", "fp8 by block")
            for shape in serving
        ]
    return found + PLANTED


def _uneven_k(name: str) -> int:
    """No multiple of a tile, but of the group."""
    return next((512 + group for group in (128, 64, 32) if f"group {group}" in name), 528)


def _case(name: str, check: Callable[[Shape, Machine], Figures], shape: Shape) -> Case:
    return Case(f"gemm {name} {shape[0]}x{shape[1]}x{shape[2]}", partial(check, shape), checks=True)


PLANTED = [
    Case(
        "planted: gemm swaps nibbles",
        partial(planted, "w4_gemm_kernel", "low, high = unpack_groups(", "high, low = unpack_groups("),
        checks=True,
        planted=True,
    ),
    Case(
        "planted: gemm forgets a scale",
        partial(planted, "w4_gemm_kernel", "EVEN_K) * now", "EVEN_K)"),
        checks=True,
        planted=True,
    ),
]
