"""The tile unit of Intel CPUs (AMX): its instructions as LLVM IR, and the kernel's permission to use it.

Eight tiles of up to 16 rows of 64 bytes. There are two products, of rows and of words below each other:
    bytes   16 x 16 int32 += 16 rows of 64 signed bytes times 64 x 16 unsigned ones, four to a word; exact, but for
            wrapping int32
    pairs   16 x 16 float32 += 16 rows of 32 bfloat16 times 32 x 16, two to a word. For each sum, the first values of
            the pairs are multiplied and added in order, by fused multiply-adds from zero; so are the second ones; the
            two sums are added, and that to the total. Denormals are zeros (Intel's manual, TDPBF16PS)
Tiles are named by number; no compiler allocates them, and a call keeps none. What is written for the unit takes it as
an argument, so that tests can put one of their own in its place.

A thread configures the unit before it uses it and releases it afterwards. Until then its tiles are part of its state:
the kernel saves 8 KiB more when it switches the thread, and the core sleeps less deeply.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

from llvmlite import ir

from .functions import inline, new_function
from .lanes import declare, i8, i32, i64, int64, scaled, void
from .target import has, wide_registers

TILES, TILE_ROWS, TILE_BYTES = 8, 16, 64  # bytes of a row
FIRST_WHOLE = 6  # tiles from here on always have 16 rows: those of the right factor
_SYSCALL_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux, on x86-64
_UNASKED, _GRANTED, _REFUSED = 0, 1, 2
_POINTER = ir.PointerType(i8)
_PALETTE_BYTES = 64


def _palette(rows: int) -> bytes:
    """For LDTILECFG: palette 1, no start row; bytes of a row, then rows, of each tile."""
    counts = [rows] * FIRST_WHOLE + [TILE_ROWS] * (TILES - FIRST_WHOLE)
    return struct.pack("<BB14x8H16x8B8x", 1, 0, *[TILE_BYTES] * TILES, *counts)


_PALETTES = b"".join(_palette(rows) for rows in range(1, TILE_ROWS + 1))


class TileUnit(Protocol):
    """`state` is what `configure` returned, an int64. Tiles are numbers below TILES, addresses and strides int64.

    The tiles below FIRST_WHOLE have as many rows as `configure` was told, at most 16.
    """

    name: str

    def configure(self, b: ir.IRBuilder, rows: ir.Value) -> ir.Value: ...
    def release(self, b: ir.IRBuilder, state: ir.Value) -> None: ...
    def zero(self, b: ir.IRBuilder, state: ir.Value, tile: int) -> None: ...
    def load(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None: ...
    def store(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None: ...
    def multiply_bytes(self, b: ir.IRBuilder, state: ir.Value, total: int, signed: int, unsigned: int) -> None: ...
    def multiply_pairs(self, b: ir.IRBuilder, state: ir.Value, total: int, left: int, right: int) -> None: ...


class Amx:
    """The real one. Its state is the thread's own; the number that stands for it says nothing."""

    name = "amx"

    def configure(self, b: ir.IRBuilder, rows: ir.Value) -> ir.Value:
        kind = ir.ArrayType(i8, len(_PALETTES))
        name = "triolet_amx_palettes"
        if name not in b.module.globals:
            made = ir.GlobalVariable(b.module, kind, name)
            made.linkage, made.global_constant = "internal", True
            made.initializer = ir.Constant(kind, bytearray(_PALETTES))
        first = b.ptrtoint(b.module.globals[name], i64)
        own = scaled(b, first, b.sub(rows, int64(1)), _PALETTE_BYTES)
        self._emit(b, "ldtilecfg", [b.inttoptr(own, _POINTER)])
        return int64(0)

    def release(self, b: ir.IRBuilder, state: ir.Value) -> None:
        self._emit(b, "tilerelease", [])

    def zero(self, b: ir.IRBuilder, state: ir.Value, tile: int) -> None:
        self._emit(b, "tilezero", [tile])

    def load(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._emit(b, "tileloadd64", [tile, b.inttoptr(address, _POINTER), stride])

    def store(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._emit(b, "tilestored64", [tile, b.inttoptr(address, _POINTER), stride])

    def multiply_bytes(self, b: ir.IRBuilder, state: ir.Value, total: int, signed: int, unsigned: int) -> None:
        self._emit(b, "tdpbsud", [total, signed, unsigned])

    def multiply_pairs(self, b: ir.IRBuilder, state: ir.Value, total: int, left: int, right: int) -> None:
        self._emit(b, "tdpbf16ps", [total, left, right])

    def _emit(self, b: ir.IRBuilder, instruction: str, operands: list[Any]) -> None:  # Any: a tile or an ir.Value
        values = [ir.Constant(i8, operand) if isinstance(operand, int) else operand for operand in operands]
        function = declare(b.module, f"llvm.x86.{instruction}", void, [value.type for value in values])
        b.call(function, values)


def has_tiles() -> bool:
    """Whether code for the unit may be compiled; `tiles_permitted` says whether it may run.

    Only with 512-bit registers: without them the rows' corrections are others, and no such CPU exists. Nor does one
    with the unit that lacks one of its products, or the vector unit's own of pairs.
    """
    return has("amx-tile", "amx-int8", "amx-bf16", "avx512bf16") and wide_registers()


def permitted(b: ir.IRBuilder) -> ir.Value:
    """1 if this process may use the tile unit, else 0."""
    name = "triolet_amx_permitted"
    if name not in b.module.globals:
        _emit_permitted(b.module, name)
    return b.call(b.module.globals[name], [])


def _emit_permitted(module: ir.Module, name: str) -> None:
    """Asks the kernel once for this module of code. The answer is for the process: threads and modules get the same."""
    answer = ir.GlobalVariable(module, i32, f"{name}_answer")
    answer.linkage, answer.initializer = "internal", ir.Constant(i32, _UNASKED)
    _, b = new_function(module, name, "", i64)
    known, unknown = b.append_basic_block("known"), b.append_basic_block("unknown")
    last = b.load_atomic(answer, "monotonic", 4)
    b.cbranch(b.icmp_signed("==", last, ir.Constant(i32, _UNASKED)), unknown, known)
    b.position_at_end(unknown)
    syscall = declare(module, "syscall", i64, [i64] * 7)
    numbers = [_SYSCALL_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA, 0, 0, 0, 0]
    granted = b.icmp_signed("==", b.call(syscall, [int64(number) for number in numbers]), int64(0))
    b.store_atomic(b.select(granted, ir.Constant(i32, _GRANTED), ir.Constant(i32, _REFUSED)), answer, "monotonic", 4)
    b.branch(known)
    b.position_at_end(known)
    b.ret(b.zext(b.icmp_signed("==", b.load_atomic(answer, "monotonic", 4), ir.Constant(i32, _GRANTED)), i64))


tiles_permitted = inline(0, permitted, result=True)  # the same for compiled code
