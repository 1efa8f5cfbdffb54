"""Symmetric quantisation as the last step of a row kernel: one scale per group of values, value = stored * scale.

int8: scale = max |x| / 127, ties to even (reference.py, without the CPU's correction). e4m3: scale = max |x| / 448. A
group of zeros gets a tiny scale and stays zeros. The output's type decides the stored type. uint8 means the
bits of e4m3, for GPUs without that type.

Other kernels call `group_scale`, `stored` and `write_groups`. `quantise_rows` is for attention's output, which no
kernel before the GEMM can quantise, because a row has many writers.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import await_inputs, jit, next_power_of_2, tl
from ..gpu.table import E4M3_CAPABILITY, LaunchRow, Table, choose
from .reference import SMALLEST_MAXIMUM

GROUP = 128  # values per scale if a row has several: the block of FP8 GEMMs
INT8_LIMIT, E4M3_LIMIT = tl.constexpr(127.0), tl.constexpr(448.0)
_SMALLEST = tl.constexpr(SMALLEST_MAXIMUM)
_REBIAS = tl.constexpr(2.0**-120)
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, ties to even


@jit
def group_scale(largest, dtype: tl.constexpr):
    """The scales of groups from their largest magnitudes."""
    LIMIT: tl.constexpr = INT8_LIMIT if dtype == tl.int8 else E4M3_LIMIT
    return tl.maximum(largest, _SMALLEST) / LIMIT


@jit
def stored(values, largest, dtype: tl.constexpr):
    """values [N, C] under the scales of largest [N], as dtype."""
    LIMIT: tl.constexpr = INT8_LIMIT if dtype == tl.int8 else E4M3_LIMIT
    values *= tl.div_rn(LIMIT, tl.maximum(largest, _SMALLEST))[:, None]
    if dtype == tl.int8:
        values = (values + _ROUND) - _ROUND
    if dtype == tl.uint8:
        # 2^-120 moves the exponent's bias from 127 to 7, subnormals to subnormals; then 20 bits are rounded away.
        magnitude = (tl.minimum(tl.abs(values), LIMIT) * _REBIAS).to(tl.int32, bitcast=True)
        magnitude = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
        codes = (magnitude | tl.where(values < 0, 0x80, 0)).to(tl.uint8)
    else:
        codes = values.to(dtype)
    return codes


@jit
def write_groups(out, scales, place, inside, values, GROUPS: tl.constexpr, first_group):
    """Store a tile [N, C], a group per row of the tile, at out + place; quantised where `out` is int8 or e4m3.

    `scales` are those of this row of the matrix, GROUPS of them; `first_group` is that of the tile's first row.
    """
    dtype: tl.constexpr = out.dtype.element_ty
    if dtype == tl.int8 or dtype == tl.float8e4nv:
        largest = tl.max(tl.abs(values), 1)
        tl.store(out + place, stored(values, largest, dtype), mask=inside)
        group = first_group + tl.arange(0, values.shape[0])
        tl.store(scales + group, group_scale(largest, dtype), mask=group < GROUPS)
    else:
        tl.store(out + place, values.to(dtype), mask=inside)


@jit
def quantise_rows_kernel(x, out, scales, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """A program and a scale per row; the row is read twice, the second time from the cache."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    tile = tl.arange(0, COLUMNS)[None, :]
    largest = tl.zeros([1, COLUMNS], tl.float32)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = tl.load(x + row * SIZE + place, mask=place < SIZE, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(value))
    whole = tl.max(largest, 1)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = tl.load(x + row * SIZE + place, mask=place < SIZE, other=0.0).to(tl.float32)
        tl.store(out + row * SIZE + place, stored(value, whole, dtype), mask=place < SIZE)
    tl.store(scales + row + tl.arange(0, 1), group_scale(whole, dtype))


@jit
def quantise_groups_kernel(
    x, out, scales, SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """A program per row, with GROUPS scales for COLUMNS values each."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    for start in range(0, SIZE, TILE_GROUPS * COLUMNS):
        place = start + tile
        value = tl.load(x + row * SIZE + place, mask=place < SIZE, other=0.0).to(tl.float32)
        write_groups(
            out + row * SIZE, scales + row * GROUPS, place, place < SIZE, value, GROUPS, start // COLUMNS
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuantiseLaunch:
    tile: int  # values of a turn of the loop
    num_warps: int


# By the size of a row: its bits never depend on the batch it is in.
TABLE: Table[QuantiseLaunch] = {
    80: (
        LaunchRow(2048, QuantiseLaunch(2048, 4), "compiled: 31 registers, no spills; not measured"),
        LaunchRow(None, QuantiseLaunch(4096, 8), "compiled: 31 registers, no spills; not measured"),
    ),
}


def quantise_rows(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, *, capability: int) -> None:
    """out int8 or e4m3 [rows, size]: x = out * scales, as nearly as out's type can. Any rows.

    scales float32 [rows], or [rows, size / GROUP].
    """
    rows, size = out.shape
    if x.shape != out.shape or not (x.is_contiguous() and out.is_contiguous()):
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} must be contiguous and of one shape")
    groups = scale_groups(out, scales, capability)
    if rows == 0:
        return
    launch = choose(TABLE, capability, size)
    if scales.dim() == 2:
        quantise_groups_kernel[(rows,)](
            x, out, scales, SIZE=size, GROUPS=groups, TILE_GROUPS=min(launch.tile // GROUP, next_power_of_2(groups)),
            COLUMNS=GROUP, num_warps=launch.num_warps,
        )  # fmt: skip
        return
    quantise_rows_kernel[(rows,)](
        x, out, scales, SIZE=size, COLUMNS=min(launch.tile, next_power_of_2(size)), num_warps=launch.num_warps
    )


def scale_groups(out: torch.Tensor, scales: torch.Tensor | None, capability: int) -> int:
    """How many scales a row of `out` [rows, size] has: 1, or one per GROUP values, by the shape of `scales`.

    Raises ValueError if the tensors contradict each other.
    """
    quantised = out.dtype in (torch.int8, torch.float8_e4m3fn)
    if quantised != (scales is not None):
        raise ValueError(f"scales go with an int8 or e4m3 output and with no other, and out is {out.dtype}")
    if out.dtype == torch.float8_e4m3fn and capability < E4M3_CAPABILITY:
        raise ValueError(f"e4m3 output needs compute capability {E4M3_CAPABILITY}, the device has {capability}")
    if scales is None:
        return 1
    rows, size = out.shape
    expected = (rows,) if scales.dim() == 1 else (rows, size // GROUP)
    fits = scales.shape == expected and not (scales.dim() == 2 and size % GROUP)
    if scales.dtype != torch.float32 or not fits or not scales.is_contiguous():
        raise ValueError(
            f"scales must be contiguous float32 [{rows}], or [{rows}, {size} / {GROUP}] where that divides: "
            f"they are {scales.dtype} {tuple(scales.shape)}"
        )
    return 1 if scales.dim() == 1 else size // GROUP
