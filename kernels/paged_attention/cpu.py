"""The attention kernel as compiled code calls it: attend(cache tag, rows, ...) for 1 to 6 rows; see Tile for the
arguments.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.formats import number_format_of
from ..simd.functions import kernel, switch_on_rows
from .int8_tile import Int8Tile
from .latent_tile import LatentTile
from .tile import ARGUMENTS, ROW_VARIANTS, Tile


def _emit(module: ir.Module, cache_format: str) -> ir.Function:
    name = f"triolet_attention_{cache_format}"
    if name in module.globals:
        return module.globals[name]
    number_format = number_format_of(cache_format)
    tile = LatentTile if number_format != cache_format else Int8Tile if cache_format == "int8" else Tile

    def variant(module: ir.Module, rows: range) -> ir.Function:
        return tile(module, f"{name}_{rows[-1]}", number_format, rows[-1]).function

    return switch_on_rows(module, name, "i" + ARGUMENTS, ROW_VARIANTS, variant)


attend = kernel("i" + "i" + ARGUMENTS, _emit)
