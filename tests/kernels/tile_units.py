"""Tile units (kernels/simd/amx.py) in memory, for CPUs without one, and compiled functions rebuilt around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numba
from llvmlite import binding, ir

from triolet.kernels.gemm import cpu, cpu_amx
from triolet.kernels.gemm.cpu_amx import callables
from triolet.kernels.gemm.tile import ARGUMENTS
from triolet.kernels.gemm.tile_amx import emit_block_int8
from triolet.kernels.gemm.tile_amx_int4 import emit_block_int4
from triolet.kernels.simd.amx import TILE_BYTES, TILE_ROWS, TILES, Amx, TileUnit
from triolet.kernels.simd.functions import Values, inline, kernel, loop, new_function
from triolet.kernels.simd.lanes import (
    VI,
    at,
    constant,
    declare,
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


class EmulatedTiles:
    """Each instruction is a call of a function that works on eight tiles of memory: those of the thread's `state`.

    If the int64 at the address `faulty` is not 0, it multiplies as TDPBUUD does, with unsigned activations.
    """

    name = "emulated"

    def __init__(self, faulty: int) -> None:
        self._faulty = faulty

    def configure(self, b: ir.IRBuilder) -> ir.Value:
        state = b.call(declare(b.module, "malloc", i64, [i64]), [int64(TILES * TILE)])
        self._call(b, "configure", partial(_fill, -77), [state, int64(TILES * TILE_ROWS)])  # nobody may rely on zeros
        return state

    def release(self, b: ir.IRBuilder, state: ir.Value) -> None:
        b.call(declare(b.module, "free", void, [i64]), [state])

    def zero(self, b: ir.IRBuilder, state: ir.Value, tile: int) -> None:
        self._call(b, "zero", partial(_fill, 0), [self._tile(b, state, tile), int64(TILE_ROWS)])

    def load(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._call(b, "copy", _copy, [self._tile(b, state, tile), int64(TILE_BYTES), address, stride])

    def store(self, b: ir.IRBuilder, state: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._call(b, "copy", _copy, [address, stride, self._tile(b, state, tile), int64(TILE_BYTES)])

    def multiply(self, b: ir.IRBuilder, state: ir.Value, total: int, signed: int, unsigned: int) -> None:
        assert len({total, signed, unsigned}) == 3, "the CPU refuses a tile in two places"
        self._call(b, "multiply", self._product, [self._tile(b, state, tile) for tile in (total, signed, unsigned)])

    def _product(self, b: ir.IRBuilder, total: ir.Value, signed: ir.Value, unsigned: ir.Value) -> None:
        """total[m][n] += the sum over k of signed[m][k] * unsigned[k // 4][4 n + k % 4], byte by byte."""
        faulty = b.icmp_signed("!=", load(b, int64(self._faulty), i64, 8), int64(0))
        down = constant(i32, 24)

        def of_row(m: ir.Value, _: Values) -> Values:
            def add_quad(quad: ir.Value, values: Values) -> Values:
                words = load(b, scaled(b, unsigned, quad, TILE_BYTES), VI)
                x = splat(b, load(b, b.add(scaled(b, signed, m, TILE_BYTES), b.mul(quad, int64(4))), i32))
                for byte in range(4):
                    left, right = (b.shl(value, constant(i32, 24 - 8 * byte)) for value in (x, words))
                    left = b.select(faulty, b.lshr(left, down), b.ashr(left, down))
                    values = [b.add(values[0], b.mul(left, b.lshr(right, down)))]
                return values

            row = scaled(b, total, m, TILE_BYTES)
            store(b, loop(b, int64(TILE_ROWS), [load(b, row, VI)], add_quad)[0], row)
            return []

        loop(b, int64(TILE_ROWS), [], of_row)

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


def _copy(b: ir.IRBuilder, to: ir.Value, to_stride: ir.Value, source: ir.Value, stride: ir.Value) -> None:
    def row(index: ir.Value, _: Values) -> Values:
        store(b, load(b, b.add(source, b.mul(index, stride)), VI, 1), b.add(to, b.mul(index, to_stride)), 1)
        return []

    loop(b, int64(TILE_ROWS), [], row)


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


def real_machine_code(weight_format: str) -> str:
    """Assembler for a Sapphire Rapids: the real unit configured, a block, the unit released."""
    module, unit = ir.Module(), Amx()
    block = {"int8": emit_block_int8, "int4": emit_block_int4}[weight_format](module, unit)
    around, b = new_function(module, "around", "i" * (len(block.args) - 1))
    state = unit.configure(b)
    b.call(block, [state, *around.args])
    unit.release(b, state)
    b.ret_void()
    around.linkage = block.linkage = "external"
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="sapphirerapids", features="+amx-tile,+amx-int8", opt=3
    )
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return str(machine.emit_assembly(parsed))
