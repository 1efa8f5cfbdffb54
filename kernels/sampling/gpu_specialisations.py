"""The sampler's kernels at the vocabulary of Llama 3, as serving launches them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ..gpu.compiling import Specialisation
from ..gpu.language import cdiv, next_power_of_2
from ..gpu.table import choose
from .gpu_draw import draw_kernel, pick_kernel
from .gpu_filters import gather_kernel, weigh_kernel
from .gpu_logprobs import report_kernel, survey_kernel
from .gpu_penalties import adjust_kernel
from .gpu_table import TABLE
from .gpu_threshold import threshold_kernel
from .rows import MAX_TOP

VOCABULARY = 128_256
POINTERS = {
    **dict.fromkeys(("adjusted", "edit_values", "logprobs", "top_logprobs"), "*fp32"),
    **dict.fromkeys(("best", "raw_best", "scores", "totals", "amounts", "leaders"), "*i64"),
    **dict.fromkeys(("rows", "seen", "seen_slots", "edit_starts", "edit_tokens", "masks", "mask_slots"), "*i32"),
    **dict.fromkeys(("faults", "held", "tokens", "kept", "ids", "top_ids"), "*i32"),
    "status": "*u8",
    "logits_stride": "i32",
}


def specialisations() -> Iterator[Specialisation]:
    launch = choose(TABLE, 90, VOCABULARY)
    blocks = cdiv(VOCABULARY, launch.tile)
    constants: dict[str, int] = {
        "VOCAB": VOCABULARY,
        "TILE": launch.tile,
        "BLOCKS": blocks,
        "PADDED_BLOCKS": next_power_of_2(blocks),
        "PADDED_LEADERS": next_power_of_2(blocks * MAX_TOP),
    }
    for logits in ("*bf16", "*fp32"):
        for kernel in (adjust_kernel, survey_kernel):
            yield _specialisation(kernel, logits, launch.num_warps, constants)
        yield _specialisation(report_kernel, logits, launch.row_warps, constants)
    for kernel in (weigh_kernel, gather_kernel):
        yield _specialisation(kernel, "", launch.num_warps, constants)
    for kernel in (threshold_kernel, pick_kernel):
        yield _specialisation(kernel, "", launch.row_warps, constants)
    for filters in (False, True):
        yield _specialisation(draw_kernel, "", launch.num_warps, constants | {"FILTERS": filters})


def _specialisation(kernel: Any, logits: str, num_warps: int, constants: Mapping[str, int]) -> Specialisation:
    """`kernel` is what triton.jit returns: Any."""
    names = list(inspect.signature(kernel.fn).parameters)
    types = POINTERS | {"logits": logits} | dict.fromkeys(constants, "constexpr")
    return Specialisation(
        kernel=kernel,
        signature={name: types[name] for name in names},
        constants={name: value for name, value in constants.items() if name in names},
        num_warps=num_warps,
        num_stages=3,
        fuses=False,
    )
