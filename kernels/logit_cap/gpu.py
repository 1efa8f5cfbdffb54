"""A factor and a soft cap of logits on the GPU, in place. The definition is reference.py.

There is one launch for every device and size. The launcher checks and launches; it allocates nothing.
"""

import torch

from ..gpu.language import await_inputs, cdiv, jit, tl
from ..gpu.operand import need

TILE, WARPS = 1024, 4  # compiled: 27 registers, no spills; not measured


@jit
def cap_kernel(x, factor, cap, SIZE: tl.constexpr, CAPPED: tl.constexpr, TILE: tl.constexpr):
    """A program per row and tile. tanh(y) is 1 - 2 / (exp(2 y) + 1), bounded where it has its limit already."""
    await_inputs()
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = x + tl.program_id(0).to(tl.int64) * SIZE + place
    value = tl.load(at, mask=place < SIZE, other=0.0) * factor
    if CAPPED:
        value = cap - 2.0 * cap / (tl.exp(tl.minimum(2.0 * value / cap, 80.0)) + 1.0)
    tl.store(at, value, mask=place < SIZE)


def cap_logits(logits: torch.Tensor, factor: float, cap: float | None) -> None:
    """logits float32 [rows, vocab], contiguous."""
    rows, size = logits.shape
    need("logits", logits, torch.float32, rows, size)
    cap_kernel[(rows, cdiv(size, TILE))](
        logits, factor, 1.0 if cap is None else cap, SIZE=size, CAPPED=cap is not None, TILE=TILE, num_warps=WARPS
    )
