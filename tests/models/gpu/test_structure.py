"""A structure's launches are those that the memory plan counts, whatever the family."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from triolet.kernels.gpu.launches import KernelForm, recording
from triolet.loadtest.device.compile_catalogue import RecordingDevice
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.gpu.buckets import GpuSizes
from triolet.models.gpu.experts import more_launches_of_experts
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.working_memory import more_launches

from .gpu_house import SPEC
from .test_variants import OneShape, accepted, spec_here

SHAPES = 2  # each runs once before it is captured


def launched(spec: ModelSpec) -> int:
    """The launches of our own kernels before a worker is ready, recorded alone."""
    found = list[KernelForm]()
    with recording(found.append):
        GpuModel(RecordingDevice(90), spec, None, GpuSizes(max_model_len=128, num_blocks=4, buckets=OneShape()))
    return len(found)


@pytest.mark.parametrize("variant", accepted())
def test_launches_beyond_those_of_a_plain_model_are_counted(variant: str) -> None:
    spec = spec_here(variant, 1)
    of_layer, other = more_launches(spec)
    expected = spec.num_layers * of_layer + other
    if spec.experts is not None:
        sparse = sum(kind.experts for kind in spec.layers)
        expected += sparse * more_launches_of_experts(spec.experts, "none")
    assert launched(spec) - launched(SPEC) == SHAPES * expected


def test_a_launch_that_is_not_counted_is_noticed() -> None:
    capped = replace(SPEC, logit_cap=30.0)
    assert launched(capped) - launched(SPEC) != 0
