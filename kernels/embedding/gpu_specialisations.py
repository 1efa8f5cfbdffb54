"""Gathers of the embeddings and last hidden rows of real models, as serving launches them."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.compiling import Specialisation
from ..gpu.table import choose
from .gpu import TABLE, gather_rows_kernel


def specialisations() -> Iterator[Specialisation]:
    for size in (1024, 4096):  # Qwen3-0.6B, Llama-3.1-8B
        launch = choose(TABLE, 90, size)
        yield Specialisation(
            kernel=gather_rows_kernel,
            signature={
                "ids": "*i32",
                "table": "*bf16",
                "out": "*bf16",
                "count": "i32",
                "SIZE": "constexpr",
                "TILE": "constexpr",
            },
            constants={"SIZE": size, "TILE": launch.tile},
            num_warps=launch.num_warps,
            num_stages=3,
            unaligned=frozenset({"count"}),  # of the last rows it is the number of tokens
        )
