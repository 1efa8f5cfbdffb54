"""The RMS norms of real models, as serving launches them."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.compiling import Specialisation
from ..gpu.language import next_power_of_2
from ..gpu.table import choose
from ..quantise.gpu import GROUP
from .gpu import TABLE, rms_norm_kernel, rms_norm_looped_kernel

# (size of a row, type of the output, groups of it, residual?). 1024: Qwen3-0.6B; 4096: Llama-3.1-8B; 20480: looped.
FORMS = (
    (1024, "bf16", 1, True),
    (4096, "bf16", 1, False),
    (4096, "bf16", 1, True),
    (4096, "i8", 1, True),
    (4096, "fp8e4nv", 1, True),
    (4096, "fp8e4nv", 4096 // GROUP, True),
    (5120, "bf16", 1, True),
    (8192, "bf16", 1, True),
    (16384, "bf16", 1, True),
    (16384, "fp8e4nv", 16384 // GROUP, True),
    (20480, "bf16", 1, True),
    (20480, "i8", 1, True),
)


def specialisations() -> Iterator[Specialisation]:
    for size, kind, groups, has_residual in FORMS:
        launch = choose(TABLE, 90, size)
        tile = min(launch.tile, next_power_of_2(size))
        columns = GROUP if groups > 1 else tile
        yield Specialisation(
            kernel=rms_norm_kernel if size <= tile else rms_norm_looped_kernel,
            signature={
                "x": "*bf16",
                "residual": "*bf16",
                "weight": "*bf16",
                "out": f"*{kind}",
                "scales": "*bf16" if kind == "bf16" else "*fp32",
                "x_stride": "i32",
                "eps": "fp32",
                **dict.fromkeys(("SIZE", "GROUPS", "TILE_GROUPS", "COLUMNS", "HAS_RESIDUAL"), "constexpr"),
            },
            constants={
                "SIZE": size,
                "GROUPS": groups,
                "TILE_GROUPS": max(1, tile // columns),
                "COLUMNS": columns,
                "HAS_RESIDUAL": has_residual,
            },
            num_warps=launch.num_warps,
            num_stages=3,
            capabilities=(90,) if kind == "fp8e4nv" else (80, 90),
        )
