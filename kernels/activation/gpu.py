"""The middle of an MLP on the GPU: f(gate + bias) * (up + bias), or f(up + bias) where there is no gate; optionally
quantised. A row of x is all gates, then all ups. All arithmetic is float32.

Clamped (silu_mul/reference.py): gate * sigmoid(slope * gate) * (up + offset), of gates up to a limit and ups within +-
it.

Elementwise, so a row is cut into tiles; only a scale over the whole row needs a program that sees the whole row. The
launcher checks, picks the launch and launches; it allocates nothing.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import await_inputs, cdiv, jit, next_power_of_2, tl
from ..gpu.table import LaunchRow, Table, choose
from ..quantise.gpu import GROUP, group_scale, scale_groups, stored, write_groups
from .reference import REFERENCES


@jit
def activated(x, ACTIVATION: tl.constexpr):
    """f(x), by its name in the definition."""
    if ACTIVATION == "silu":
        result = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)); here the factor is 2 sqrt(2 / pi)
        power = -1.5957691216057308 * (x + 0.044715 * x * x * x)
        result = x / (1.0 + tl.exp(tl.minimum(power, 80.0)))
    elif ACTIVATION == "gelu":
        result = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        tl.static_assert(ACTIVATION == "relu" or ACTIVATION == "relu2")
        result = tl.maximum(x, 0.0)
        if ACTIVATION == "relu2":
            result *= result
    return result


@jit
def between(
    x, bias, place, inside, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """What the second matrix reads, at these places of a row."""
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
    if LIMIT is None:
        value = activated(value, ACTIVATION)
    else:
        value = tl.where(value > LIMIT, LIMIT, value)  # NaN stays
        value = value / (1.0 + tl.exp(-SLOPE * value))
    if GATED:
        up = tl.load(x + SIZE + place, mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            up += tl.load(bias + SIZE + place, mask=inside, other=0.0).to(tl.float32)
        if LIMIT is not None:
            up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up)) + OFFSET
        value *= up
    return value


@jit
def activation_kernel(
    x, bias, out, scales, x_stride,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """A program per row and tile: not quantised, or with a scale per group of COLUMNS."""
    await_inputs()
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * (TILE_GROUPS * COLUMNS)
    place = start + tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = place < SIZE
    value = between(x + row * x_stride, bias, place, inside, SIZE, ACTIVATION, GATED, HAS_BIAS, LIMIT, SLOPE, OFFSET)
    write_groups(out + row * SIZE, scales + row * GROUPS, place, inside, value, GROUPS, start // COLUMNS)


@jit
def activation_row_kernel(
    x, bias, out, scales, x_stride,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """A program per row, one scale per row: the values are computed twice, the second time from the cache."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    tile = tl.arange(0, COLUMNS)[None, :]
    largest = tl.zeros([1, COLUMNS], tl.float32)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = between(
            x + row * x_stride, bias, place, place < SIZE, SIZE, ACTIVATION, GATED, HAS_BIAS, LIMIT, SLOPE, OFFSET
        )
        largest = tl.maximum(largest, tl.abs(value))
    whole = tl.max(largest, 1)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = between(
            x + row * x_stride, bias, place, place < SIZE, SIZE, ACTIVATION, GATED, HAS_BIAS, LIMIT, SLOPE, OFFSET
        )
        tl.store(out + row * SIZE + place, stored(value, whole, dtype), mask=place < SIZE)
    tl.store(scales + row + tl.arange(0, 1), group_scale(whole, dtype))


@dataclass(frozen=True, slots=True)
class Clamp:
    limit: float
    slope: float
    offset: float


@dataclass(frozen=True, slots=True)
class ActivationLaunch:
    tile: int  # values per program, or per turn of the loop where a program owns a row
    num_warps: int


# Chosen by row size, so a row's bits never depend on its batch.
TILES: Table[ActivationLaunch] = {
    80: (LaunchRow(None, ActivationLaunch(1024, 4), "compiled: 30 registers, no spills; not measured"),)
}
ROWS: Table[ActivationLaunch] = {
    80: (
        LaunchRow(4096, ActivationLaunch(4096, 8), "compiled: 32 registers, no spills; not measured"),
        LaunchRow(None, ActivationLaunch(8192, 16), "compiled: 40 registers, no spills; not measured"),
    ),
}


def activate(
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    activation: str,
    gated: bool,
    capability: int,
    bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    clamp: Clamp | None = None,
) -> None:
    """out [rows, size] = f(x[:, :size]) * x[:, size:], or f(x) of x [rows, size] without a gate; f is `activation`.

    `bias`, as long as a row of x, is added to x first. x may have a row stride; out is contiguous. With `scales`
    (float32 [rows], or [rows, size / 128]) out is int8 or e4m3. A clamp is that of a gated silu.
    """
    if activation not in REFERENCES or (clamp is not None and (activation, gated) != ("silu", True)):
        clamped = "" if clamp is None else f" clamped, {'gated' if gated else 'without a gate'}"
        raise ValueError(f"{activation}{clamped}: there are {', '.join(REFERENCES)}, and silu clamped and gated")
    rows, size = out.shape
    width = 2 * size if gated else size
    if x.shape != (rows, width):
        raise ValueError(f"out is {tuple(out.shape)}, so x must be [{rows}, {width}], and is {tuple(x.shape)}")
    if x.stride(1) != 1 or not out.is_contiguous():
        raise ValueError("the rows of x must be contiguous, and out as a whole")
    if bias is not None and bias.shape != (width,):
        raise ValueError(f"bias must be [{width}], and is {tuple(bias.shape)}")
    groups = scale_groups(out, scales, capability)
    if rows == 0:
        return
    added = x if bias is None else bias
    limit, slope, offset = (None, None, None) if clamp is None else (clamp.limit, clamp.slope, clamp.offset)
    form = {
        "ACTIVATION": activation, "GATED": gated, "HAS_BIAS": bias is not None,
        "LIMIT": limit, "SLOPE": slope, "OFFSET": offset,
    }  # fmt: skip
    if scales is not None and groups == 1:
        launch = choose(ROWS, capability, size)
        activation_row_kernel[(rows,)](
            x, added, out, scales, x.stride(0), SIZE=size, COLUMNS=min(launch.tile, next_power_of_2(size)), **form,
            num_warps=launch.num_warps,
        )  # fmt: skip
        return
    launch = choose(TILES, capability, size)
    columns = GROUP if groups > 1 else launch.tile
    activation_kernel[(rows, cdiv(size, launch.tile))](
        x, added, out, out if scales is None else scales, x.stride(0),
        SIZE=size, GROUPS=groups, TILE_GROUPS=launch.tile // columns, COLUMNS=columns, **form,
        num_warps=launch.num_warps,
    )  # fmt: skip
