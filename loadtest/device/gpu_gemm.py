"""GEMMs on the device: every weight format right in every bucket of rows, as --quantize makes it and as checkpoints
store it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from triolet.kernels.gemm import gpu_launch, gpu_launch_packed, gpu_packed
from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4, gemm_reference
from triolet.kernels.gemm.gpu_table import LinearFormat
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_fp32,
    pack_w4,
    pack_w8,
    pack_w8a8,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, equal, faulty, no_worse, require, within
from triolet.loadtest.device.random_stored import LAYOUTS, held
from triolet.models.gpu.stored import format_of, pack_stored

Tensor = torch.Tensor
Shape = tuple[int, int, int]  # M, N, K
FP8_SCALES = {"tensor": ((0, 0), (0, 0)), "channel": ((1, 0), (1, 0)), "block": ((1, 128), (128, 128))}


def uneven(rows: int, k: int) -> Tensor:
    """Rows of very different sizes: a scale of the wrong row shows."""
    return drawn(1, rows, k) * torch.linspace(0.1, 9, rows)[:, None]


def rows_among_nan(rows: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x whose rows are followed by NaN in memory: a read behind the last column shows."""
    wide = torch.full((rows, k + 128), torch.nan, dtype=dtype)
    wide[:, :k] = drawn(1, rows, k)
    return wide[:, :k]


def fresh_workspace(size: int) -> Tensor:
    """NaN behind counters that are 0."""
    workspace = torch.full((size,), 255, dtype=torch.uint8)
    workspace[: gpu_launch.COUNTER_BYTES] = 0
    return workspace


def weight_of(
    kind: LinearFormat, values: Tensor, group: int = 128, *, zeros: bool = True, blocks: bool = False
) -> PackedLinear:
    """`group` and `zeros` of 4-bit weights; float8 has a scale of each channel, or of `blocks`."""
    match kind:
        case "w4a16":
            return pack_w4(*quantise_w4(values, group, symmetric=not zeros), group)
        case "w8a16":
            return pack_w8(values)
        case "w8a8":
            return pack_w8a8(values)
        case "fp8":
            return pack_fp8(*quantise_fp8(values, *((128, 128) if blocks else (1, 0))))
        case "bf16":
            return pack_bf16(values)
        case "fp32":
            return pack_fp32(values)


def inputs_of(kind: LinearFormat, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """x, and its scales where the format has some."""
    match kind:
        case "w8a8":
            return quantise_int8(x)
        case "fp8":
            return quantise_fp8(x, 1, 0)
        case "fp32":
            return x, None
        case _:
            return x.bfloat16(), None


def extras(m: int, n: int) -> dict[str, Tensor]:
    return {"bias": drawn(3, n).bfloat16(), "residual": drawn(4, m, n).bfloat16()}


def w4(group: int, symmetric: bool, values: Tensor) -> tuple[PackedLinear, Tensor]:
    integers, scales, zeros = quantise_w4(values, group, symmetric)
    return pack_w4(integers, scales, zeros, group), dequantised_w4(integers, scales, zeros, group)


def w8(values: Tensor) -> tuple[PackedLinear, Tensor]:
    return pack_w8(values), dequantised(*quantise_int8(values))


def unwritten(m: int, n: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """NaN, where nobody writes."""
    return torch.full((m, n), torch.nan, dtype=dtype)


def check_packed(
    pack: Callable[[Tensor], tuple[PackedLinear, Tensor]], strict: bool, shape: Shape, machine: GpuMachine
) -> Figures:
    """4-bit or 8-bit weights; the workspace is NaN behind its counters, and NaN follows every row of x in memory."""
    m, n, k = shape
    weight, meant = pack(drawn(2, n, k) + 0.3)
    x, more, out = rows_among_nan(m, k), extras(m, n), unwritten(m, n)
    workspace = fresh_workspace(gpu_launch.workspace_bytes(weight, m, machine.capability, strict))
    gpu_launch.gemm(x, weight, capability=machine.capability, out=out, workspace=workspace, strict=strict, **more)
    plain = x @ meant.bfloat16().T + more["bias"] + more["residual"]
    return no_worse(out, plain, gemm_reference(x, meant, **more))


def on_device(packed: PackedLinear) -> PackedLinear:
    """What was packed on the host, on the default device."""
    tensors: dict[str, Any] = {name: part.to(torch.get_default_device()) for name, part in packed.tensors.items()}
    return replace(packed, **tensors)


def stored(layout: str, n: int, k: int, seed: int = 2) -> tuple[PackedLinear, Tensor]:
    """A matrix as a checkpoint stores it, in the format of the kernels, and its numbers."""
    matrix = held(LAYOUTS[layout], n, k, seed)
    kind = format_of(matrix.layout, k)
    assert kind is not None
    packed = pack_stored([matrix], kind)
    return on_device(packed), torch.from_numpy(matrix.rows(0, n)).double().to(torch.get_default_device())


def check_stored(layout: str, strict: bool, shape: Shape, machine: GpuMachine) -> Figures:
    """Minima, zero points, scales of few bytes, in the file's own types."""
    m, n, k = shape
    (weight, meant), x = stored(layout, n, k), drawn(1, m, k).bfloat16()
    out = gpu_launch.gemm(x, weight, capability=machine.capability, strict=strict)
    return no_worse(out, x @ meant.bfloat16().T, gemm_reference(x, meant))


def check_int8(strict: bool, shape: Shape, machine: GpuMachine) -> Figures:
    """The integer sums are exact, so the result is known to the bit."""
    m, n, k = shape
    values, more = uneven(n, k), extras(m, n)
    weight, (integers, scales) = pack_w8a8(values), quantise_int8(values)
    x, x_scales = quantise_int8(uneven(m, k))
    out = gpu_launch.gemm(x, weight, x_scales, capability=machine.capability, strict=strict, **more)
    sums = (x.double() @ integers.double().T).float()  # below 2**53: exact
    exact = sums * x_scales[:, None] * scales[None, :] + more["bias"].float() + more["residual"].float()
    if machine.dry:
        equal(out, exact.bfloat16(), "y")
        return {"error": 0.0}
    # A GPU may fuse the last product and sum: half a unit of bfloat16 either way where a tie is met.
    return no_worse(out, exact.bfloat16(), exact.double())


def check_fp8(scales: str, strict: bool, shape: Shape, machine: GpuMachine) -> Figures:
    """Blocks of 128 columns differ in size, too: a scale of another block shows."""
    machine.need("fp8")
    m, n, k = shape
    of_x, of_weight = FP8_SCALES[scales]
    sizes = (1.0 + torch.arange(k) // 128)[None, :]
    weight, more = pack_fp8(*quantise_fp8(uneven(n, k) * sizes, *of_weight)), extras(m, n)
    x, x_scales = quantise_fp8(uneven(m, k) / sizes, *of_x)
    assert weight.scales is not None
    out = gpu_launch.gemm(x, weight, x_scales, capability=machine.capability, strict=strict, **more)
    meant = dequantised(x, x_scales), dequantised(weight.weight, weight.scales)
    plain = (meant[0].float() @ meant[1].float().T + more["bias"].float() + more["residual"].float()).bfloat16()
    return no_worse(out, plain, gemm_reference(*meant, **more))


def check_bf16(strict: bool, shape: Shape, machine: GpuMachine) -> Figures:
    m, n, k = shape
    weight, x, more = pack_bf16(uneven(n, k)), uneven(m, k).bfloat16(), extras(m, n)
    out = gpu_launch.gemm(x, weight, capability=machine.capability, out=unwritten(m, n), strict=strict, **more)
    plain = x @ weight.weight.T + more["bias"] + more["residual"]
    return no_worse(out, plain, gemm_reference(x, weight.weight, **more))


def check_float32(kind: LinearFormat, strict: bool, shape: Shape, machine: GpuMachine) -> Figures:
    """Sums that are kept as float32: those of the head, whose operands are bfloat16, and all of a model in float32."""
    m, n, k = shape
    weight, (x, _) = weight_of(kind, uneven(n, k)), inputs_of(kind, uneven(m, k))
    out = unwritten(m, n, torch.float32)
    found = gpu_launch.gemm(x, weight, capability=machine.capability, out=out, strict=strict)
    require(found is out, "the sums are elsewhere")
    return float32_sums(out, x, weight)


def float32_sums(out: Tensor, x: Tensor, weight: PackedLinear) -> Figures:
    """Only their order is free."""
    exact = gemm_reference(x, weight.weight)
    allowed = weight.k * 2.0**-24 * gemm_reference(x.abs(), weight.weight.abs())  # each of K - 1 holds at most that
    rounded = (out.bfloat16().double() - exact).abs()
    require(bool((rounded > 10 * allowed).any()), "this check would not notice sums in bfloat16")
    return {"error": within(out, exact, allowed, "a sum"), "allowed": float(allowed.max())}


EITHER: dict[str, Callable[[bool, Shape, GpuMachine], Figures]] = {  # strict or not
    "w4 group 128": partial(check_packed, partial(w4, 128, True)),
    "w4 group 128 zeros": partial(check_packed, partial(w4, 128, False)),
    "w4 group 64 zeros": partial(check_packed, partial(w4, 64, False)),
    "w4 group 32": partial(check_packed, partial(w4, 32, True)),
    "w8": partial(check_packed, w8),
    "int8": check_int8,
    **{f"fp8 by {scales}": partial(check_fp8, scales) for scales in FP8_SCALES},
    "bf16": check_bf16,
    "logits": partial(check_float32, "bf16"),
    "fp32": partial(check_float32, "fp32"),
}
STORED = ("Q4_0", "Q4_1", "Q4_K", "AWQ", "Q8_0", "Q6_K", "MXFP4")


# The kernel is made anew, as it is, because one that was compiled keeps the functions it was compiled with.
AGAIN = gpu_launch_packed, "w4_gemm_kernel", "sums = w4_sums(", "sums = w4_sums("
W4 = partial(check_packed, partial(w4, 128, True), False, (5, 128, 256))
PLANTED = [
    planted(name, faulty(run, (gpu_packed, "w4_sums", old, new), AGAIN))
    for name, run, old, new in (
        ("gemm swaps nibbles", W4, "low, high = unpack_groups(", "high, low = unpack_groups("),
        ("gemm forgets a scale", W4, "EVEN_K) * now", "EVEN_K)"),
        ("gemm takes another minimum", partial(check_stored, "Q4_K", False, (5, 72, 256)),
         "low1, scale1, least1", "low1, scale1, least0"),
    )
]  # fmt: skip


def checks(dry: bool) -> list[GpuCase]:
    every = EITHER | {f"as {layout}": partial(check_stored, layout) for layout in STORED}

    def case(name: str, strict: bool, shape: Shape) -> GpuCase:
        title = f"gemm {name}{' strict' if strict else ''} {shape[0]}x{shape[1]}x{shape[2]}"
        return check(title, partial(every[name], strict, shape))

    def uneven_k(name: str) -> int:
        """No multiple of a tile, but of the group."""
        return next((512 + group for group in (128, 64, 32) if f"group {group}" in name), 528)

    found = [
        case(name, strict, (rows, 128 if dry else 200, 256 if dry else uneven_k(name)))
        for name in EITHER
        for strict in (False, True)
        for rows in ((5,) if dry else (1, 40, 300, 1100))
    ]
    if dry:
        found += [case(f"as {layout}", False, (5, 72, 256)) for layout in STORED]
        return [*found, case("w4 group 128 zeros", False, (65, 128, 256)), *PLANTED]
    found += [
        case(f"as {layout}", strict, (rows, 200, 512))
        for layout in STORED
        for strict in (False, True)
        for rows in (1, 20, 40, 100, 300, 1100)
    ]
    found += [
        case(name, False, (rows, 4096, 4096))
        for name in ("w4 group 128 zeros", "w8", "int8", "fp8 by channel", "fp8 by block")
        for rows in (1, 16, 32, 64, 128, 256, 2048)
    ]
    return found + PLANTED
