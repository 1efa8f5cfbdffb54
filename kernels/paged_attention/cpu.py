"""The attention kernel as compiled code calls it: attend(cache tag, rows, ...); see Tile for the arguments."""

from __future__ import annotations

from llvmlite import ir

from ..compile_cache import compiled
from ..simd.amx import TILE_ROWS, Amx, TileUnit, has_tiles, permitted, tiles_permitted
from ..simd.formats import number_format_of
from ..simd.functions import kernel, new_function, switch_on_rows
from .amx_tile import AmxTile
from .int8_tile import Int8Tile
from .latent_tile import LatentTile
from .tile import ARGUMENTS, MOST_ROWS, ROW_VARIANTS, Tile


@compiled
def _unit_is_permitted() -> int:
    return tiles_permitted()


def most_rows(cache_format: str) -> int:
    """The most rows of one `attend` on this machine, in this process."""
    in_tiles = cache_format == "bfloat16" and has_tiles() and _unit_is_permitted()
    return TILE_ROWS if in_tiles else MOST_ROWS


def _emit(module: ir.Module, cache_format: str) -> ir.Function:
    name = f"triolet_attention_{cache_format}"
    if name in module.globals:
        return module.globals[name]
    if cache_format == "bfloat16" and has_tiles():
        return _emit_either(module, name)
    return _emit_vectors(module, name, cache_format)


def _emit_vectors(module: ir.Module, name: str, cache_format: str) -> ir.Function:
    number_format = number_format_of(cache_format)
    tile = LatentTile if number_format != cache_format else Int8Tile if cache_format == "int8" else Tile

    def variant(module: ir.Module, rows: range) -> ir.Function:
        return tile(module, f"{name}_{rows[-1]}", number_format, rows[-1]).function

    return switch_on_rows(module, name, "i" + ARGUMENTS, ROW_VARIANTS, variant)


def emit_tiles(module: ir.Module, unit: TileUnit) -> ir.Function:
    """Over a bfloat16 cache, by the unit."""
    name = f"triolet_attention_{unit.name}"
    return module.globals.get(name) or AmxTile(module, name, unit).function


def _emit_either(module: ir.Module, name: str) -> ir.Function:
    """By the tile unit if this process may use it: always or never, because it rounds in a way of its own."""
    by_vectors, by_tiles = _emit_vectors(module, f"{name}_vectors", "bfloat16"), emit_tiles(module, Amx())
    function, b = new_function(module, name, "ii" + ARGUMENTS)
    with b.if_else(b.icmp_signed("!=", permitted(b), ir.Constant(ir.IntType(64), 0))) as (tiles, vectors):
        with tiles:
            b.call(by_tiles, function.args)
        with vectors:
            b.call(by_vectors, function.args)
    b.ret_void()
    return function


attend = kernel("i" + "i" + ARGUMENTS, _emit)
