"""The end of decode for a row in parts: the last program to finish one adds them all, in their order.

So the sum does not depend on who was last, and there is no launch of its own.
"""

from ..gpu.language import jit, tl
from .gpu_tile import NEVER


@jit
def reduce_row(
    partials, maxima, totals, out, slot, parts, kv_head, query,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    GROUP_ROWS: tl.constexpr, PARTS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The `parts` of one row from `slot` on, for the heads of a group: out[query]."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    group, dim, some = tl.arange(0, GROUP_ROWS), tl.arange(0, PADDED_DIM), tl.arange(0, PARTS_AT_ONCE)
    head = kv_head * GROUP + group
    is_output = (group < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    maximum, total = tl.full((GROUP_ROWS,), NEVER, tl.float32), tl.zeros((GROUP_ROWS,), tl.float32)
    output = tl.zeros((GROUP_ROWS, PADDED_DIM), tl.float32)
    for begin in range(0, parts, PARTS_AT_ONCE):
        is_part = begin + some < parts
        place = (slot + begin + some)[:, None] * HEADS + head[None, :]
        is_place = is_part[:, None] & (group < GROUP)[None, :]
        part_maxima = tl.load(maxima + place, mask=is_place, other=float("-inf"), cache_modifier=".cg")
        part_totals = tl.load(totals + place, mask=is_place, other=0.0, cache_modifier=".cg")
        part_outputs = tl.load(
            partials + place[:, :, None] * HEAD_DIM + dim[None, None, :],
            mask=is_part[:, None, None] & is_output[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )
        raised = tl.maximum(maximum, tl.max(part_maxima, 0))
        weights, decay = tl.exp2(part_maxima - raised[None, :]), tl.exp2(maximum - raised)
        total = total * decay + tl.sum(weights * part_totals, 0)
        output = output * decay[:, None] + tl.sum(weights[:, :, None] * part_outputs, 0)
        maximum = raised
    total = tl.where(group < GROUP, total, 1.0)
    result = (output / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (query * HEADS + head[:, None]) * HEAD_DIM + dim[None, :], result, mask=is_output)
