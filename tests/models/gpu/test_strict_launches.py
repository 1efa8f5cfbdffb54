"""Strict launches are the same forms for every number of tokens and rows: the interpreter ignores warps and layouts,
from which a GPU's sums take their order, so they are compared as they are launched, without being run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from triolet.loadtest.device.compile_models import LaunchedModel
from triolet.loadtest.device.layer_launches import captured_launches
from triolet.models.gpu import attention
from triolet.models.gpu.buckets import PassShape

from .gpu_house import SPEC

INTEGERS_ONLY = {"plan_kernel", "prepare_kernel", "keep_drawn_kernel"}
Forms = dict[str, set[object]]  # by kernel: constants, warps and stages of its launches


def captured(quantize: str, kv_cache_dtype: str) -> dict[tuple[str, PassShape], Forms]:
    served = LaunchedModel(SPEC, quantize, kv_cache_dtype, max_running=70, max_tokens=1100, max_rows=300)
    found: dict[tuple[str, PassShape], Forms] = {}
    for part, launches in captured_launches(served, 90).items():
        found[part] = defaultdict(set)
        for name, form in launches:
            if form is not None and name not in INTEGERS_ONLY:
                found[part][name].add((form.constants, form.num_warps, form.num_stages, form.fuses))
    return found


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
