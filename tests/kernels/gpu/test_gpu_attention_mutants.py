"""Faults planted in the attention kernels: the check that the kernels pass must refuse each one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from triolet.kernels.gpu import arrival
from triolet.kernels.paged_attention import gpu_decode, gpu_launch, gpu_prefill, gpu_reduce, gpu_tile

from .attention_batch import FP8, drawn_batch, small_launch
from .mutants import mutated

# Two decode rows, of which the first is split and ends inside a page, and a prompt chunk that sees two pages whole.
CHUNKS = [(1, 150), (5, 140), (1, 64)]


@dataclass(frozen=True)
class Fault:
    kernel: Any  # Any: what triton.jit returns
    old: str
    new: str
    used_in: tuple[ModuleType, ...] = (gpu_launch,)  # where the mutant takes the kernel's name
    cache: torch.dtype | None = None
    form: dict[str, Any] = field(default_factory=dict)  # Any: window, soft_cap
    descriptors: bool = False
    kv_heads: int = 1
    rope_dim: int = 0  # of latent vectors, of 20 heads, which are two parts


TILE_USERS = (gpu_decode, gpu_prefill)
DECODE, PREFILL, REDUCE = gpu_decode.decode_kernel, gpu_prefill.prefill_kernel, gpu_reduce.reduce_row
WINDOW = {"window": 40}
SINKS = {"sinks": torch.tensor([1.0, 3.0])}
FAULTS = {
    "decode sees one key too many": Fault(DECODE, "position < length", "position <= length"),
    "decode sees one key too few": Fault(DECODE, "position < length", "position < length - 1"),
    "decode window one too short": Fault(DECODE, "position >= lowest", "position > lowest", form=WINDOW),
    "prefill sees the next key": Fault(
        gpu_prefill.attend_page, "<= high[:, None]", "<= high[:, None] + 1", (gpu_prefill,)
    ),
    "prefill does not see its own key": Fault(
        gpu_prefill.attend_page, "<= high[:, None]", "< high[:, None]", (gpu_prefill,)
    ),
    "prefill leaves the diagonal unmasked": Fault(PREFILL, "(earliest + 1) // PAGE", "(earliest + PAGE) // PAGE"),
    "prefill window one too long": Fault(
        gpu_prefill.attend_page, "(high - window)", "(high - window - 1)", (gpu_prefill,), form=WINDOW
    ),
    "output not rescaled": Fault(gpu_tile.absorb, "v, output * decay[:, None]", "v, output", TILE_USERS),
    "sum not rescaled": Fault(gpu_tile.absorb, "tl.fma(total, decay,", "tl.fma(total, 1.0,", TILE_USERS),
    "scores without their factor": Fault(
        gpu_tile.absorb, "tl.fma(scores, factor, -raised[:, None])", "scores - raised[:, None]", TILE_USERS
    ),
    "decode reads a stale last page": Fault(DECODE, "tl.minimum(index + 1, stop - 1)", "tl.minimum(index, stop - 1)"),
    "prefill begins its masked pages with a stale one": Fault(
        PREFILL, "tl.minimum(bounds[part], stop - 1)", "tl.minimum(bounds[part], 0)"
    ),
    "prefill reads a page twice": Fault(PREFILL, "tl.minimum(page + 1, stop - 1)", "tl.minimum(page, stop - 1)"),
    "NaN in a tail's scale reaches V": Fault(
        gpu_tile.read_scales, "tl.load(place, mask=seen, other=0.0)", "tl.load(place)", TILE_USERS, cache=FP8
    ),
    "keys without their scale": Fault(
        gpu_tile.page_scores, "scores *= key_scale[None, :]", "scores *= 1.0", TILE_USERS, cache=FP8
    ),
    "values without their scale": Fault(
        gpu_tile.absorb, "weights *= (value_scale * RAISED)[None, :]", "weights *= RAISED", TILE_USERS, cache=FP8
    ),
    "odd keys multiplied by even queries": Fault(
        gpu_tile.page_scores, "tl.dot(odd_q", "tl.dot(q", TILE_USERS, cache=FP8
    ),
    "even and odd values exchanged": Fault(
        gpu_tile.whole_output, "joined(output, odd_output)", "joined(odd_output, output)", TILE_USERS, cache=FP8
    ),
    "values' scales not raised": Fault(gpu_tile.absorb, "value_scale * RAISED", "value_scale", TILE_USERS, cache=FP8),
    "odd values not rescaled": Fault(
        gpu_tile.absorb, "odd_output * decay[:, None]", "odd_output", TILE_USERS, cache=FP8
    ),
    "soft cap with half its range": Fault(
        gpu_tile.page_scores, "cap - 2.0 * cap", "cap - cap", TILE_USERS, form={"soft_cap": 2.0}
    ),
    "a part left out of the reduction": Fault(
        REDUCE, "begin + some < parts", "begin + some < parts - 1", (gpu_decode,)
    ),
    "parts not weighed": Fault(REDUCE, "weights[:, :, None] * part_outputs", "part_outputs", (gpu_decode,)),
    "a head left out where parts are added": Fault(
        REDUCE, "(group < GROUP)[:, None]", "(group < GROUP - 1)[:, None]", (gpu_decode,)
    ),
    "parts that nobody adds up": Fault(arrival.is_last, "parts - 1", "parts", (gpu_decode,)),
    "one count for all heads": Fault(DECODE, "kv_head * sequences + row", "row", kv_heads=2),
    "a sink in every part": Fault(DECODE, "begin == 0", "begin >= 0", form=SINKS),
    "prefill without sinks": Fault(
        PREFILL, "started(sinks, head, head < HEADS, True)", "started(None, head, head < HEADS, True)", form=SINKS
    ),
    "another head's sink": Fault(gpu_tile.started, "sinks + head", "sinks + 0 * head", TILE_USERS, form=SINKS),
    "a sink in base e": Fault(gpu_tile.started, " * LOG2_E", "", TILE_USERS, form=SINKS),
    "decode skips too few pages of a window": Fault(DECODE, "skipped = lowest // PAGE", "skipped = 0", form=WINDOW),
    "scores without the rotated part": Fault(
        gpu_tile.page_scores, "turned is not None", "False", TILE_USERS, rope_dim=8
    ),
    "rows as far apart as latent vectors": Fault(
        gpu_tile.read_page, "token[:, None] * APART", "token[:, None] * DIM", TILE_USERS, rope_dim=8
    ),
    "decode reads the vector's first values as the rotated key": Fault(
        DECODE, "keys + HEAD_DIM", "keys", rope_dim=8
    ),
    "prefill reads the vector's first values as the rotated key": Fault(
        gpu_prefill.attend_page, "keys + HEAD_DIM", "keys", (gpu_prefill,), rope_dim=8
    ),
    "decode takes the rotated part of a query from its front": Fault(
        DECODE, "at_head + HEAD_DIM", "at_head", rope_dim=8
    ),
    "prefill takes the rotated part of a query from its front": Fault(
        PREFILL, "q_stride + HEAD_DIM + at_row", "q_stride + at_row", rope_dim=8
    ),
    "decode lets NaN in a page's tail reach the vectors": Fault(
        DECODE, "ROPE_DIM > 0, DESC", "False, DESC", rope_dim=8
    ),
    "prefill lets NaN in a page's tail reach the vectors": Fault(
        gpu_prefill.attend_page, "EDGE and ROPE_DIM > 0", "False", (gpu_prefill,), rope_dim=8
    ),
}  # fmt: skip


def passes(fault: Fault) -> bool:
    heads, size = (20, 40) if fault.rope_dim else (2, 64)
    dtype = torch.bfloat16 if fault.cache else torch.float32  # of codes, products are in float16
    batch = drawn_batch(CHUNKS, heads, fault.kv_heads, size, dtype=dtype, cache=fault.cache, rope_dim=fault.rope_dim)
    return batch.passes(small_launch(3 * fault.kv_heads, descriptors=fault.descriptors), **fault.form)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    mutant = mutated(fault.kernel, fault.old, fault.new, tmp_path)
    for module in fault.used_in:
        monkeypatch.setattr(module, fault.kernel.fn.__name__, mutant)
    assert not passes(fault)


def test_latent_vectors_without_one_pass() -> None:
    assert passes(Fault(DECODE, "", "", rope_dim=8))


@pytest.mark.parametrize(("cache", "descriptors"), [(None, False), (None, True), (FP8, False)])
@pytest.mark.parametrize("form", [{}, WINDOW, {"soft_cap": 2.0}, SINKS])
def test_the_kernels_without_one_pass(cache: torch.dtype | None, descriptors: bool, form: dict[str, Any]) -> None:
    assert passes(Fault(DECODE, "", "", cache=cache, form=form, descriptors=descriptors))
