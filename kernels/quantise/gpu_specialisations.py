"""Attention outputs of real models, as serving quantises them."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.compiling import Specialisation
from ..gpu.language import next_power_of_2
from ..gpu.table import choose
from .gpu import TABLE, quantise_rows_kernel

SIZES = (2048, 4096, 8192)  # heads times head size: Qwen3-0.6B, Llama-3.1-8B, its 70B


def specialisations() -> Iterator[Specialisation]:
    for size in SIZES:
        launch = choose(TABLE, 90, size)
        yield Specialisation(
            kernel=quantise_rows_kernel,
            signature={
                "x": "*bf16",
                "out": "*fp8e4nv",
                "scales": "*fp32",
                "SIZE": "constexpr",
                "COLUMNS": "constexpr",
            },
            constants={"SIZE": size, "COLUMNS": min(launch.tile, next_power_of_2(size))},
            num_warps=launch.num_warps,
            num_stages=3,
            capabilities=(89, 90),
        )
