"""The kernels around a step as serving launches them: table width of a 128k context, blocks of Llama-3.1-8B."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.compiling import Specialisation
from .gpu import (
    COPY_BLOCK,
    PREPARE_TILE,
    PREPARE_WARPS,
    SCATTER_BLOCK,
    copy_blocks_kernel,
    keep_drawn_kernel,
    prepare_kernel,
    scatter_kernel,
)

WIDTH = 131072 // 64
WORDS = 8 * 64 * 128 // 2  # of one layer's keys in bfloat16


def specialisations() -> Iterator[Specialisation]:
    yield _of(scatter_kernel, "values places target", "count", {"BLOCK": SCATTER_BLOCK}, 4)
    inputs = "chunk_slots first_positions starts given_ids slot_rows ids positions slots lengths block_tables"
    yield _of(prepare_kernel, inputs, "tokens chunks", {"WIDTH": WIDTH, "TILE": PREPARE_TILE}, PREPARE_WARPS)
    kept = {"WIDTH": WIDTH, "BLOCK": SCATTER_BLOCK}
    yield _of(keep_drawn_kernel, "drawn row_slots slot_rows", "rows", kept, 4)
    yield _of(copy_blocks_kernel, "sources targets cache", "blocks", {"WORDS": WORDS, "BLOCK": COPY_BLOCK}, 8)


def _of(kernel: object, pointers: str, integers: str, constants: dict[str, int], warps: int) -> Specialisation:
    signature = dict.fromkeys(pointers.split(), "*i32") | dict.fromkeys(integers.split(), "i32")
    return Specialisation(
        kernel=kernel,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constants=constants,
        num_warps=warps,
        num_stages=3,
        unaligned=frozenset(integers.split()),
    )
