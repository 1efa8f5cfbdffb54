"""Tile units (kernels/simd/amx.py) in memory, for CPUs without one, and compiled functions rebuilt around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir

from triolet.kernels.gemm import cpu, cpu_amx
from triolet.kernels.gemm.cpu_amx import callables
from triolet.kernels.gemm.tile import ARGUMENTS
from triolet.kernels.gemm.tile_amx import emit_block_int8
from triolet.kernels.gemm.tile_amx_bfloat16 import emit_block_bfloat16
from triolet.kernels.gemm.tile_amx_int4 import emit_block_int4
from triolet.kernels.paged_attention.cpu import emit_tiles
from triolet.kernels.paged_attention.tile import ARGUMENTS as ATTENTION_ARGUMENTS
from triolet.kernels.simd.amx import FIRST_WHOLE, TILE_BYTES, TILE_ROWS, TILES, Amx, TileUnit
from triolet.kernels.simd.arithmetic import fma
from triolet.kernels.simd.dot import half_of
from triolet.kernels.simd.functions import Values, inline, kernel, loop, new_function
from triolet.kernels.simd.lanes import (
    VF,
    VI,
    at,
    constant,
    declare,
    f32,
    i32,
    i64,
    int64,
    load,
    scaled,
    splat,
    store,
    void,
)

TILE = TILE_ROWS * TILE_BYTES
# Of a word's number: the left word, in all lanes, and the right ones.
Factors = Callable[[ir.Value], tuple[ir.Value, ir.Value]]


class EmulatedTiles:
    """Each instruction is a call of a function that works on eight tiles of memory: those of the thread's `state`.

    If the int64 at the address `faulty` is not 0, it multiplies bytes as TDPBUUD does, with unsigned activations, and
    pairs in one sum instead of two. Denormals are not zeros to it.
    """

    name = "emulated"

    def __init__(self, faulty: int) -> None:
        self._faulty = faulty

    def configure(self, b: ir.IRBuilder, rows: ir.Value) -> ir.Value:
        state = b.call(declare(b.module, "malloc", i64, [i64]), [int64(TILES * TILE + 8)])
        self._call(b, "configure", partial(_fill, -77), [state, int64(TILES * TILE_ROWS)])  # nobody may rely on zeros
        store(b, rows, at(b, state, TILES * TILE), 8)
        return state

    def release(self, b: ir.IRBuilder, state: ir.Value) -> None:
        b.call(declare(b.module, "free", void, [i64]), [state])

    def zero(self, b: ir.IRBuilder, state: ir.Value, tile: int) -> None:
        self._call(b, "zero", partial(_fill, 0), [self._tile(b, state, tile), self._rows(b, state, tile)])

    def load(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        own, rows = self._tile(b, state, tile), self._rows(b, state, tile)
        self._call(b, "copy", _copy, [own, int64(TILE_BYTES), address, stride, rows])

    def store(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        own, rows = self._tile(b, state, tile), self._rows(b, state, tile)
        self._call(b, "copy", _copy, [address, stride, own, int64(TILE_BYTES), rows])

    def multiply_bytes(self, b: ir.IRBuilder, state: ir.Value, total: int, signed: int, unsigned: int) -> None:
        self._multiply(b, state, "bytes", self._add_bytes, (total, signed, unsigned))

    def multiply_pairs(self, b: ir.IRBuilder, state: ir.Value, total: int, left: int, right: int) -> None:
        self._multiply(b, state, "pairs", self._add_pairs, (total, left, right))

    def _multiply(
        self, b: ir.IRBuilder, state: ir.Value, name: str, add: Callable[..., ir.Value], tiles: tuple[int, int, int]
    ) -> None:
        assert len(set(tiles)) == 3, "the CPU refuses a tile in two places"
        assert max(tiles[:2]) < FIRST_WHOLE <= tiles[2], "the CPU refuses tiles whose rows do not fit"
        rows = self._rows(b, state, tiles[0])
        self._call(b, name, partial(self._product, add), [*(self._tile(b, state, tile) for tile in tiles), rows])

    def _product(
        self,
        add: Callable[..., ir.Value],
        b: ir.IRBuilder,
        total: ir.Value,
        left: ir.Value,
        right: ir.Value,
        rows: ir.Value,
    ) -> None:
        """total[m] = add(total[m], words of left[m], rows of words of right) for each row m."""

        def of_row(m: ir.Value, _: Values) -> Values:
            row, own = scaled(b, total, m, TILE_BYTES), scaled(b, left, m, TILE_BYTES)

            def factors(word: ir.Value) -> tuple[ir.Value, ir.Value]:
                x = splat(b, load(b, b.add(own, b.mul(word, int64(4))), i32))
                return x, load(b, scaled(b, right, word, TILE_BYTES), VI)

            store(b, add(b, load(b, row, VI), factors), row)
            return []

        loop(b, rows, [], of_row)

    def _add_bytes(self, b: ir.IRBuilder, total: ir.Value, factors: Factors) -> ir.Value:
        """total[n] plus the sum over k of signed[k] * unsigned[k // 4][4 n + k % 4], byte by byte."""
        faulty, down = self._is_faulty(b), constant(i32, 24)

        def add_quad(quad: ir.Value, values: Values) -> Values:
            x, words = factors(quad)
            for byte in range(4):
                left, right = (b.shl(value, constant(i32, 24 - 8 * byte)) for value in (x, words))
                left = b.select(faulty, b.lshr(left, down), b.ashr(left, down))
                values = [b.add(values[0], b.mul(left, b.lshr(right, down)))]
            return values

        return loop(b, int64(TILE_ROWS), [total], add_quad)[0]

    def _add_pairs(self, b: ir.IRBuilder, total: ir.Value, factors: Factors) -> ir.Value:
        """total[n] plus (the sum of all first products plus that of all second ones)."""
        faulty = self._is_faulty(b)

        def add_pair(pair: ir.Value, sums: Values) -> Values:
            x, w = factors(pair)
            (x0, x1), (w0, w1) = ([b.bitcast(half_of(b, value, half), VF) for half in (0, 1)] for value in (x, w))
            first = fma(b, x0, w0, sums[0])
            both = fma(b, x1, w1, b.select(faulty, first, sums[1]))
            return [b.select(faulty, both, first), b.select(faulty, sums[1], both)]

        first, second = loop(b, int64(TILE_ROWS), [constant(f32, 0.0)] * 2, add_pair)
        return b.bitcast(b.fadd(b.bitcast(total, VF), b.fadd(first, second)), VI)

    def _is_faulty(self, b: ir.IRBuilder) -> ir.Value:
        return b.icmp_signed("!=", load(b, int64(self._faulty), i64, 8), int64(0))

    def _rows(self, b: ir.IRBuilder, state: ir.Value, tile: int) -> ir.Value:
        return int64(TILE_ROWS) if tile >= FIRST_WHOLE else load(b, at(b, state, TILES * TILE), i64, 8)

    def _tile(self, b: ir.IRBuilder, state: ir.Value, tile: int) -> ir.Value:
        assert tile in range(TILES)
        return at(b, state, tile * TILE)

    def _call(self, b: ir.IRBuilder, name: str, write: Callable[..., None], values: Values) -> None:
        name = f"tiles_{self.name}_{name}"
        if name not in b.module.globals:
            function, inside = new_function(b.module, name, "i" * len(values))
            write(inside, *function.args)
            inside.ret_void()
        b.call(b.module.globals[name], values)


def _fill(value: int, b: ir.IRBuilder, to: ir.Value, rows: ir.Value) -> None:
    def fill(index: ir.Value, _: Values) -> Values:
        store(b, constant(i32, value), scaled(b, to, index, TILE_BYTES))
        return []

    loop(b, rows, [], fill)


def _copy(
    b: ir.IRBuilder, to: ir.Value, to_stride: ir.Value, source: ir.Value, stride: ir.Value, rows: ir.Value
) -> None:
    def row(index: ir.Value, _: Values) -> Values:
        store(b, load(b, b.add(source, b.mul(index, stride)), VI, 1), b.add(to, b.mul(index, to_stride)), 1)
        return []

    loop(b, rows, [], row)


def rebuilt(function: Any, **names: object) -> Any:  # Any: dispatchers of numba, which is untyped
    """A compiled function of the kernels, compiled again with other meanings of some names of its module."""
    source = function.py_func
    copy = FunctionType(source.__code__, source.__globals__ | names, source.__name__)
    return numba.njit(nogil=True, error_model="numpy")(copy)


def gemm_with(unit: TileUnit, permitted: int) -> Callable[..., None]:
    """`gemm` as on a CPU with a tile unit, permitted by the int64 at an address; its vector tile does nothing."""

    def nothing(module: ir.Module, _: str) -> ir.Function:
        function, b = new_function(module, "nothing", "i" + ARGUMENTS)
        b.ret_void()
        return function

    configure, release, multiply = callables(unit)
    made: Callable[..., None] = rebuilt(
        cpu.gemm,
        TILES_HERE=True,
        in_tile_unit=rebuilt(
            cpu.in_tile_unit, tiles_permitted=inline(0, lambda b: load(b, int64(permitted), i64, 8), result=True)
        ),
        tile_gemm=rebuilt(cpu_amx.tile_gemm, configure=configure, release=release, multiply=multiply),
        tile=kernel("i" + ARGUMENTS, nothing),
    )
    return made


def attention_with(unit: TileUnit) -> Callable[..., None]:
    """`attend` over a bfloat16 cache, by the unit."""
    inside = kernel("ii" + ATTENTION_ARGUMENTS, lambda module, _: emit_tiles(module, unit))

    @numba.njit
    def attend(
        tag: Any, rows: int, q: int, stride: int, limits: int, table: int, first: int, blocks: int, seen: int,
        cache: int, step: int, after: int, left: int, scratch: int, size: int, cap: np.float32,
    ) -> None:  # fmt: skip
        inside(tag, rows, q, stride, limits, table, first, blocks, seen, cache, step, after, left, scratch, size, cap)

    made: Callable[..., None] = attend
    return made


def real_machine_code(weight_format: str, row_tiles: int) -> str:
    """Assembler for a Sapphire Rapids: the real unit configured, a block, the unit released."""
    unit = Amx()
    emits = {"int8": emit_block_int8, "int4": emit_block_int4, "bfloat16": emit_block_bfloat16}

    def around(module: ir.Module) -> ir.Function:
        block = emits[weight_format](module, unit, row_tiles)
        function, b = new_function(module, "around", "i" * (len(block.args) - 1))
        state = unit.configure(b, function.args[0])
        b.call(block, [state, *function.args])
        unit.release(b, state)
        b.ret_void()
        block.linkage = "external"
        return function

    return machine_code(around)


def machine_code(emit: Callable[[ir.Module], ir.Function]) -> str:
    """Assembler for a Sapphire Rapids of a function."""
    module = ir.Module()
    emit(module).linkage = "external"
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="sapphirerapids", features="+amx-tile,+amx-int8,+amx-bf16", opt=3
    )
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return str(machine.emit_assembly(parsed))
