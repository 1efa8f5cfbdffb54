"""Strict launches are the same forms for every number of tokens and rows: the interpreter ignores warps and layouts,
from which a GPU's sums take their order, so they are compared as they are launched, without being run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from triolet.models.gpu import attention
from triolet.models.gpu.buckets import Buckets, GpuSizes, PassShape
from triolet.models.gpu.device import Graph, Result, Work
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.rehearsal import RehearsalDevice

from .gpu_house import SPEC, weights_of

INTEGERS_ONLY = {"plan_kernel", "prepare_kernel", "keep_drawn_kernel"}
Launched = tuple[Any, tuple[tuple[str, Any], ...]]  # Any: Triton's function; arguments by name
Forms = dict[str, set[object]]  # by kernel: constants, warps and stages of its launches


class Ignored:
    def replay(self) -> None:
        raise AssertionError("nothing runs here")


class Recorder(RehearsalDevice):
    """Launches nothing; what would be captured is kept by the part of the pass and its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: dict[tuple[str, PassShape], Forms] = {}

    def run(self, work: Callable[[], Result]) -> Result:
        with self._recording(capturing=False):
            return work()

    def capture(self, work: Work) -> Graph:
        assert isinstance(work, partial)
        with self._recording(capturing=True) as recording:
            work()
        forms: Forms = defaultdict(set)
        for form in recording.forms:
            name = form.name.rpartition(".")[2]
            if name not in INTEGERS_ONLY:
                forms[name].add((form.constants, form.num_warps, form.num_stages, form.fuses))
        self.captured[work.func.__name__, work.args[0]] = forms
        return Ignored()


def captured(quantize: str, kv_cache_dtype: str) -> dict[tuple[str, PassShape], Forms]:
    device = Recorder()
    GpuModel(
        device,
        SPEC,
        weights_of(SPEC),
        GpuSizes(
            quantize=quantize,
            kv_cache_dtype=kv_cache_dtype,
            num_blocks=4,
            max_model_len=SPEC.max_position,
            buckets=Buckets(max_tokens=1100, max_chunks=70, max_rows=300),
        ),
    )
    return device.captured


def differing(found: dict[tuple[str, PassShape], Forms], *, strict: bool) -> set[str]:
    """Kernels of which not all shapes launch the same forms, in the layers or in the head."""
    parts: dict[str, list[Forms]] = defaultdict(list)
    for (part, shape), forms in found.items():
        if shape.strict == strict:
            parts[part].append(forms)
    assert set(parts) == {"_run_layers", "_run_head"}
    names = {(part, name) for part, shapes in parts.items() for forms in shapes for name in forms}
    names.remove(("_run_layers", "prefill_kernel"))  # a decode step has none
    return {name for part, name in names if len({frozenset(forms.get(name, ())) for forms in parts[part]}) > 1}


@pytest.mark.parametrize(
    ("quantize", "kv_cache_dtype"), [("none", "bfloat16"), ("int4", "int8"), ("fp8", "fp8"), ("w8a8", "bfloat16")]
)
def test_every_shape_launches_the_same(quantize: str, kv_cache_dtype: str) -> None:
    found = captured(quantize, kv_cache_dtype)
    assert max(shape.tokens for _, shape in found) > 512 < 2 * max(shape.rows for _, shape in found)
    assert differing(found, strict=True) == set()
    assert differing(found, strict=False)


def test_a_launch_that_follows_the_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rope: Callable[..., None] = vars(attention)["rope_cache"]

    def following(*args: Any, strict: bool, **kwargs: Any) -> None:
        rope(*args, **kwargs)

    monkeypatch.setattr(attention, "rope_cache", following)
    assert differing(captured("none", "bfloat16"), strict=True) == {"rope_cache_kernel"}
