"""The MLP gates of real models, as serving launches them."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.compiling import Specialisation
from ..gpu.language import next_power_of_2
from ..gpu.table import choose
from ..quantise.gpu import GROUP
from .gpu import ROWS, TILES, silu_mul_kernel, silu_mul_row_kernel

# (size of a row of the output, its type, groups of it). 3072: Qwen3-0.6B; 14336: Llama-3.1-8B; 28672: its 70B.
FORMS = (
    (3072, "bf16", 1),
    (14336, "bf16", 1),
    (14336, "fp8e4nv", 14336 // GROUP),
    (3072, "i8", 1),
    (14336, "i8", 1),
    (14336, "fp8e4nv", 1),
    (28672, "i8", 1),
)


def specialisations() -> Iterator[Specialisation]:
    for size, kind, groups in FORMS:
        whole = kind != "bf16" and groups == 1
        launch = choose(ROWS if whole else TILES, 90, size)
        columns = min(launch.tile, next_power_of_2(size)) if whole else GROUP if groups > 1 else launch.tile
        constants = {"SIZE": size, "COLUMNS": columns}
        if not whole:
            constants |= {"GROUPS": groups, "TILE_GROUPS": launch.tile // columns}
        yield Specialisation(
            kernel=silu_mul_row_kernel if whole else silu_mul_kernel,
            signature={
                "x": "*bf16",
                "out": f"*{kind}",
                "scales": "*bf16" if kind == "bf16" else "*fp32",
                "x_stride": "i32",
                **dict.fromkeys(("SIZE",) if whole else ("SIZE", "GROUPS", "TILE_GROUPS"), "constexpr"),
                "COLUMNS": "constexpr",
            },
            constants=constants,
            num_warps=launch.num_warps,
            num_stages=3,
            capabilities=(90,) if kind == "fp8e4nv" else (80, 90),
        )
