"""The page of estimates is what its command prints, follows from the counts, and a worse kernel makes it worse."""

from __future__ import annotations

from pathlib import Path

from triolet.loadtest.device import roofline
from triolet.loadtest.device.compile_models import LLAMA_8B, LaunchedModel
from triolet.loadtest.device.kernel_counts import known_counts
from triolet.loadtest.device.layer_launches import launches_of_layer
from triolet.loadtest.device.roofline import MULTIPROCESSORS, PAGE, TENSOR, VERSION, Work, decode, page

ROOT = Path(__file__).parents[3]
KIND = "bf16 HEAD_DIM=128"


def test_the_docs_show_the_estimates() -> None:
    assert (ROOT / PAGE).read_text() == page(), f"write it anew: python -m {roofline.__name__} > {PAGE}"


def test_a_kernel_takes_as_long_as_its_slowest_part() -> None:
    known = known_counts(VERSION)
    work = decode(known, KIND, 2 * 128, [4096] * 64)
    assert work.limit == "memory"
    assert work.bytes == 64 * 4096 * 8 * 2 * 2 * 128
    name = f"decode_kernel sm_90 {KIND}"
    slow = decode(known | {name: known[name] | {"loops": [5000]}}, KIND, 2 * 128, [4096] * 64)
    assert slow.limit == "instructions"
    assert slow.seconds > work.seconds
    assert Work(0, 0, TENSOR["bf16"]).seconds == 1.0
    assert MULTIPROCESSORS == 132


def test_launches_of_a_layer_are_counted_in_their_order() -> None:
    found = launches_of_layer(LaunchedModel(LLAMA_8B), 1, 90)
    assert found.count("library product") == 4
    assert found[:4] == ["norm_rows_kernel", "library product", "rope_cache_kernel", "decode_kernel"]
    assert len(found) == 9
