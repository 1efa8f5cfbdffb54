"""The device sampler: the definition of reference.py, eight small kernels, nothing allocated, nothing waited for.

The grid depends on the number of rows and the vocabulary alone, so a captured graph serves every batch of its size:
what a row does not ask for, its programs skip. A row of padding has target 0 and top -1.

What may differ from the CPU: log probabilities by 1e-6 (gpu_logprobs.py). Tokens, status and order of alternatives are
equal to the bit for equal float32 logits.
"""

from __future__ import annotations

import torch

from ..gpu.language import next_power_of_2
from .gpu_buffers import ROWS_AT_ONCE, DeviceRows, DeviceSampled, Workspace, launch_of
from .gpu_draw import draw_kernel, pick_kernel
from .gpu_filters import gather_kernel, weigh_kernel
from .gpu_logprobs import report_kernel, survey_kernel
from .gpu_penalties import adjust_kernel
from .gpu_rows import ROW_WORDS
from .gpu_threshold import threshold_kernel
from .rows import MAX_TOP


def sample(
    logits: torch.Tensor,
    rows: DeviceRows,
    workspace: Workspace,
    out: DeviceSampled,
    *,
    capability: int,
    filters: bool = True,
    reports: bool = True,
) -> None:
    """One token per row of logits [S, vocab] (bf16, fp16 or fp32; rows may have a stride), which are only read.

    `rows` and `out` may have room for more. Without `filters` no row may have top_k, top_p or min_p, without `reports`
    none asks for log probabilities: then those kernels are not launched.
    """
    count, vocab = logits.shape
    if logits.stride(1) != 1 or rows.seen.shape[1] != vocab or rows.words.shape[1] != ROW_WORDS:
        raise ValueError(
            f"logits must be contiguous rows of {rows.seen.shape[1]} values: they are {tuple(logits.shape)}"
        )
    if count > min(len(rows.words), len(out.ids)):
        raise ValueError(f"{count} rows of logits, but room for {min(len(rows.words), len(out.ids))}")
    if workspace.adjusted.shape[1] != vocab or len(workspace.adjusted) < min(count, ROWS_AT_ONCE):
        raise ValueError(f"a workspace of {tuple(workspace.adjusted.shape)} does not fit logits {tuple(logits.shape)}")
    for start in range(0, count, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, count)
        _sample_some(logits[start:stop], rows, workspace, out, slice(start, stop), capability, filters, reports)


def _sample_some(
    logits: torch.Tensor,
    rows: DeviceRows,
    work: Workspace,
    out: DeviceSampled,
    part: slice,
    capability: int,
    filters: bool,
    reports: bool,
) -> None:
    count, vocab = logits.shape
    launch, blocks = launch_of(vocab, capability)
    words, seen_slots = rows.words[part], rows.seen_slots[part]
    ids = out.ids[part]
    tiles, stride = (count, blocks), logits.stride(0)
    # Fused multiply-adds would round differently from the CPU, and draw other tokens.
    tiled = {"VOCAB": vocab, "TILE": launch.tile, "num_warps": launch.num_warps, "enable_fp_fusion": False}
    grouped = {"BLOCKS": blocks, "PADDED_BLOCKS": next_power_of_2(blocks)}
    whole = {"VOCAB": vocab, "num_warps": launch.row_warps, "enable_fp_fusion": False} | grouped
    adjust_kernel[tiles](
        logits, words, rows.seen, seen_slots, rows.edit_starts[part.start :], rows.edit_tokens, rows.edit_values,
        rows.masks, rows.mask_slots[part], work.adjusted, work.best, work.raw_best, work.faults, stride, **tiled,
    )  # fmt: skip
    if filters:
        inputs = (work.adjusted, words, work.best, work.faults, work.amounts)
        weigh_kernel[tiles](*inputs, **tiled, **grouped)
        gather_kernel[tiles](*inputs, work.held, work.tokens, **tiled, **grouped)
        threshold_kernel[(count,)](*inputs[1:], work.held, work.tokens, work.kept, **whole)
    draw_kernel[tiles](
        work.adjusted, words, work.best, work.faults, work.kept, work.scores, **tiled, **grouped, FILTERS=filters
    )
    pick_kernel[(count,)](
        words, work.best, work.raw_best, work.faults, work.scores, rows.seen, seen_slots, ids, out.status[part], **whole
    )
    if reports:
        survey_kernel[tiles](
            logits, words, work.raw_best, ids, work.totals, work.leaders, work.ahead, stride, **tiled, **grouped
        )
        report_kernel[(count,)](
            logits, words, work.best, work.raw_best, work.faults, ids, work.totals, work.leaders,
            work.ahead, out.logprobs[part], out.ranks[part], out.top_ids[part], out.top_logprobs[part], stride,
            **whole, PADDED_LEADERS=next_power_of_2(blocks * MAX_TOP),
        )  # fmt: skip
