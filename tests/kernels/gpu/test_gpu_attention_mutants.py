"""Faults planted in the attention kernels: the check that the kernels pass must refuse each one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from triolet.kernels.paged_attention import gpu_decode, gpu_launch, gpu_prefill
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_ragged import Form, Ragged

from .cases import small_launch

# Two decode rows, of which the first is split and ends inside a page, and a prompt chunk that sees two pages whole.
CHUNKS = [(1, 150), (5, 140), (1, 64)]


# Of codes, products are in float16.
SMALL = Form(heads=2, kv_heads=1, size=64, cache="fp32")
FP8, WINDOW, SINKS = replace(SMALL, cache="fp8"), replace(SMALL, window=40), replace(SMALL, sinks=True)
CAPPED, LATENT = replace(SMALL, soft_cap=2.0), Form(20, 1, 40, "fp32", rope_dim=8)  # heads in two parts


@dataclass(frozen=True)
class Fault:
    kernel: str
    old: str
    new: str
    used_in: tuple[ModuleType, ...] = (gpu_launch,)  # where it is called by this name
    form: Form = SMALL


TILE_USERS = (gpu_decode, gpu_prefill)
DECODE, PREFILL, REDUCE = "decode_kernel", "prefill_kernel", "reduce_row"
FAULTS = {
    "decode sees one key too many": Fault(DECODE, "position < length", "position <= length"),
    "decode sees one key too few": Fault(DECODE, "position < length", "position < length - 1"),
    "decode window one too short": Fault(DECODE, "position >= lowest", "position > lowest", form=WINDOW),
    "prefill sees the next key": Fault("attend_page", "<= high[:, None]", "<= high[:, None] + 1", (gpu_prefill,)),
    "prefill does not see its own key": Fault("attend_page", "<= high[:, None]", "< high[:, None]", (gpu_prefill,)),
    "prefill leaves the diagonal unmasked": Fault(PREFILL, "(earliest + 1) // PAGE", "(earliest + PAGE) // PAGE"),
    "prefill window one too long": Fault(
        "attend_page", "(high - window)", "(high - window - 1)", (gpu_prefill,), form=WINDOW
    ),
    "output not rescaled": Fault("absorb", "v, output * decay[:, None]", "v, output", TILE_USERS),
    "sum not rescaled": Fault("absorb", "tl.fma(total, decay,", "tl.fma(total, 1.0,", TILE_USERS),
    "scores without their factor": Fault(
        "absorb", "tl.fma(scores, factor, -raised[:, None])", "scores - raised[:, None]", TILE_USERS
    ),
    "decode reads a stale last page": Fault(DECODE, "tl.minimum(index + 1, stop - 1)", "tl.minimum(index, stop - 1)"),
    "prefill begins its masked pages with a stale one": Fault(
        PREFILL, "tl.minimum(bounds[part], stop - 1)", "tl.minimum(bounds[part], 0)"
    ),
    "prefill reads a page twice": Fault(PREFILL, "tl.minimum(page + 1, stop - 1)", "tl.minimum(page, stop - 1)"),
    "NaN in a tail's scale reaches V": Fault(
        "read_scales", "tl.load(place, mask=seen, other=0.0)", "tl.load(place)", TILE_USERS, form=FP8
    ),
    "keys without their scale": Fault(
        "page_scores", "scores *= key_scale[None, :]", "scores *= 1.0", TILE_USERS, form=FP8
    ),
    "values without their scale": Fault(
        "absorb", "weights *= (value_scale * RAISED)[None, :]", "weights *= RAISED", TILE_USERS, form=FP8
    ),
    "odd keys multiplied by even queries": Fault("page_scores", "tl.dot(odd_q", "tl.dot(q", TILE_USERS, form=FP8),
    "even and odd values exchanged": Fault(
        "whole_output", "joined(output, odd_output)", "joined(odd_output, output)", TILE_USERS, form=FP8
    ),
    "values' scales not raised": Fault("absorb", "value_scale * RAISED", "value_scale", TILE_USERS, form=FP8),
    "odd values not rescaled": Fault("absorb", "odd_output * decay[:, None]", "odd_output", TILE_USERS, form=FP8),
    "soft cap with half its range": Fault(
        "page_scores", "cap - 2.0 * cap", "cap - cap", TILE_USERS, form=CAPPED
    ),
    "a part left out of the reduction": Fault(
        REDUCE, "begin + some < parts", "begin + some < parts - 1", (gpu_decode,)
    ),
    "parts not weighed": Fault(REDUCE, "weights[:, :, None] * part_outputs", "part_outputs", (gpu_decode,)),
    "a head left out where parts are added": Fault(
        REDUCE, "(group < GROUP)[:, None]", "(group < GROUP - 1)[:, None]", (gpu_decode,)
    ),
    "parts that nobody adds up": Fault("is_last", "parts - 1", "parts", (gpu_decode,)),
    "one count for all heads": Fault(DECODE, "kv_head * sequences + row", "row", form=replace(SMALL, kv_heads=2)),
    "a sink in every part": Fault(DECODE, "begin == 0", "begin >= 0", form=SINKS),
    "prefill without sinks": Fault(
        PREFILL, "started(sinks, head, head < HEADS, True)", "started(None, head, head < HEADS, True)", form=SINKS
    ),
    "another head's sink": Fault("started", "sinks + head", "sinks + 0 * head", TILE_USERS, form=SINKS),
    "a sink in base e": Fault("started", " * LOG2_E", "", TILE_USERS, form=SINKS),
    "decode skips too few pages of a window": Fault(DECODE, "skipped = lowest // PAGE", "skipped = 0", form=WINDOW),
    "scores without the rotated part": Fault("page_scores", "turned is not None", "False", TILE_USERS, form=LATENT),
    "rows as far apart as latent vectors": Fault(
        "read_page", "token[:, None] * APART", "token[:, None] * DIM", TILE_USERS, form=LATENT
    ),
    "decode reads the vector's first values as the rotated key": Fault(DECODE, "keys + HEAD_DIM", "keys", form=LATENT),
    "prefill reads the vector's first values as the rotated key": Fault(
        "attend_page", "keys + HEAD_DIM", "keys", (gpu_prefill,), form=LATENT
    ),
    "decode takes the rotated part of a query from its front": Fault(
        DECODE, "at_head + HEAD_DIM", "at_head", form=LATENT
    ),
    "prefill takes the rotated part of a query from its front": Fault(
        PREFILL, "q_stride + HEAD_DIM + at_row", "q_stride + at_row", form=LATENT
    ),
    "decode lets NaN in a page's tail reach the vectors": Fault(
        DECODE, "ROPE_DIM > 0, DESC", "False, DESC", form=LATENT
    ),
    "prefill lets NaN in a page's tail reach the vectors": Fault(
        "attend_page", "EDGE and ROPE_DIM > 0", "False", (gpu_prefill,), form=LATENT
    ),
}  # fmt: skip


def check(form: Form, *, descriptors: bool = False) -> None:
    Ragged.drawn(form, CHUNKS).check(small_launch(3 * form.kv_heads, descriptors=descriptors))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refused(name: str) -> None:
    planted = FAULTS[name]
    first, *others = planted.used_in
    with fault(first, planted.kernel, planted.old, planted.new, *others), pytest.raises(Wrong):
        check(planted.form)


def test_latent_vectors_without_one_pass() -> None:
    check(LATENT)


@pytest.mark.parametrize(("cache", "descriptors"), [("fp32", False), ("fp32", True), ("fp8", False)])
@pytest.mark.parametrize("form", [SMALL, WINDOW, CAPPED, SINKS])
def test_the_kernels_without_one_pass(cache: str, descriptors: bool, form: Form) -> None:
    check(replace(form, cache=cache), descriptors=descriptors)
