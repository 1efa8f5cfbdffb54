"""A pass of only padding, in every shape and way of storing: it runs, and leaves the KV cache alone.

A GPU runs such passes before a worker is ready, to compile the kernels. The rehearsal device does not: only here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.packet import HostBuffers
from triolet.models.gpu.stored import FLOAT32
from triolet.protocol.settings import AdapterPlaces

from .gpu_house import LATENT, SPEC, make_gpu_model
from .test_experts import spec_of

MODELS = {
    "plain": (SPEC, "none", "bfloat16", 1),
    "float32": (SPEC, FLOAT32, FLOAT32, 0),
    "int4": (SPEC, "int4", "int8", 0),
    "w8a8": (SPEC, "w8a8", "fp8", 1),
    "latent vectors": (LATENT, "fp8", "bfloat16", 0),
    "experts": (spec_of("beside dense layers"), "none", "bfloat16", 0),
}  # model, weights, KV cache, adapters


def made(spec: ModelSpec, quantize: str, cache: str, adapters: int) -> tuple[GpuModel, HostBuffers]:
    model = make_gpu_model(
        spec=spec, quantize=quantize, kv_cache_dtype=cache, adapters=AdapterPlaces(count=adapters),
        max_running=2, max_tokens=4, blocks=2,
    )  # fmt: skip
    return model, model.make_host_buffers()


def cached(model: GpuModel) -> list[torch.Tensor]:
    return [part.view(torch.uint8).clone() for cache in model.caches for part in (cache.keys, cache.values)]


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_of_only_padding_changes_nothing(name: str) -> None:
    model, host = made(*MODELS[name])
    before = cached(model)
    shapes = model.buckets.every()
    assert {shape.strict for shape in shapes} == {shape.decode for shape in shapes} == {False, True}
    for shape in shapes:
        model.launch(host, shape, []).wait()
    assert all(map(torch.equal, before, cached(model)))


def test_a_row_that_is_no_padding_is_cached() -> None:
    """The check above can fail: by a chunk of one token, in a slot that nobody owns."""
    model, host = made(*MODELS["plain"])
    before, shape = cached(model), model.buckets.every()[0]
    filled = host.fill(shape, [])
    starts: np.ndarray = vars(host)["_starts"]
    starts[1:] = 1
    model.packet.send(host, shape, filled)
    model.replay(shape)
    model.device.synchronize()
    assert not any(map(torch.equal, before, cached(model)))
