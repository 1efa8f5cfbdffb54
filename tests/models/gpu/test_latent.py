"""Latent attention on the rehearsal device: the definition's log probabilities in every weight format, one cached row a
token, copied blocks, and what such models do not go with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from triolet.loadtest.device.compile_models import DEEPSEEK_V2_LITE
from triolet.models.checkpoint.latent import LatentWeights
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.errors import UnsupportedDevice, UnsupportedModel
from triolet.models.gpu.cache import cache_layout
from triolet.models.gpu.load import gpu_sizes
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.stepper import GpuStepper
from triolet.protocol.settings import AdapterPlaces, EngineSettings
from triolet.protocol.steps import BlockCopy, Chunk

from .gpu_house import LATENT, Driver, prompt_of, record
from .test_experts import check_model, model_of

assert LATENT.latent is not None
DIRECT = replace(LATENT, latent=replace(LATENT.latent, query_rank=None))
MODELS = {"none": LATENT, "int8": DIRECT, "int4": LATENT, "fp8": LATENT}  # by the format of the weights


def changed(weights: DecoderWeights, change: Callable[[LatentWeights], LatentWeights]) -> DecoderWeights:
    layers = (
        layer if layer.latent is None else replace(layer, latent=change(layer.latent)) for layer in weights.layers
    )
    return replace(weights, layers=tuple(layers))


def heads_exchanged(spec: ModelSpec, part: slice) -> Callable[[LatentWeights], LatentWeights]:
    """With keys, or values, that are made as the other head's."""

    def exchanged(weights: LatentWeights) -> LatentWeights:
        up = weights.up.reshape(spec.num_heads, -1, weights.up.shape[1]).copy()
        up[:, part] = up[::-1, part].copy()
        return replace(weights, up=up.reshape(weights.up.shape))

    return exchanged


def wrong_models(spec: ModelSpec, weights: DecoderWeights) -> list[tuple[ModelSpec, DecoderWeights]]:
    """With exchanged keys or values, and with another norm."""
    latent = spec.latent
    assert latent is not None
    parts = slice(0, latent.plain_dim), slice(latent.plain_dim, None)
    exchanged = [(spec, changed(weights, heads_exchanged(spec, part))) for part in parts]
    return [*exchanged, (replace(spec, latent=replace(latent, norm_eps=2.0)), weights)]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("quantize", MODELS)
def test_log_probabilities_are_those_of_the_definition(quantize: str, strict: bool) -> None:
    check_model(MODELS[quantize], quantize, wrong_models, strict=strict)


def test_a_copied_block_serves_another_sequence() -> None:
    """The copy has what was cached; a block of nobody's has not."""
    model, prompt = model_of(LATENT, "none"), prompt_of(6, 9)
    driver, rows = Driver(GpuStepper(model)), list[np.ndarray]()
    last = Chunk(sequence=1, start=0, count=6, blocks=(3,), sample=True)
    driver.step(last, new=[record(1, prompt)])
    driver.step(dropped=[1])
    for block, copies in ((3, []), (5, [BlockCopy(3, 5)]), (6, [])):
        twin = Chunk(sequence=2, start=5, count=1, blocks=(block,), sample=True)
        driver.step(twin, new=[record(2, prompt)], copies=copies)
        driver.drain()
        rows.append(model.buffers["logits"][:1].numpy().copy())
        driver.step(dropped=[2])
    assert np.array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 0.5


def test_a_token_is_cached_once_whatever_the_number_of_heads() -> None:
    blocks, layers = 7, DEEPSEEK_V2_LITE.num_layers
    assert cache_layout(DEEPSEEK_V2_LITE, blocks, "bfloat16").size == layers * blocks * 64 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("settings", "spec", "message"),
    [
        ({"kv_cache_dtype": "int8"}, LATENT, "--kv-cache-dtype int8: not for the latent vectors of deepseek_v3"),
        ({"kv_cache_dtype": "fp8"}, LATENT, "--kv-cache-dtype fp8: not for the latent vectors"),
        ({"adapter_places": AdapterPlaces(count=1)}, LATENT, "takes no LoRA adapters"),
        ({}, replace(LATENT, latent=replace(LATENT.latent, kv_rank=514), head_dim=534), "kv_lora_rank 514: no launch"),
        ({}, replace(LATENT, latent=replace(LATENT.latent, rope_dim=66), head_dim=114), "qk_rope_head_dim 66: no"),
        ({"quantize": "int4"}, replace(LATENT, latent=replace(LATENT.latent, query_rank=40)), "q_lora_rank = 40"),
    ],
)
def test_what_it_does_not_go_with_is_named(
    settings: dict[str, Any], spec: ModelSpec, message: str
) -> None:  # Any: of options
    gpu_sizes(LATENT, EngineSettings(model="", kv_cache_dtype="bfloat16"), RehearsalDevice())
    with pytest.raises((UnsupportedModel, UnsupportedDevice), match=message):
        gpu_sizes(spec, EngineSettings(model="", **settings), RehearsalDevice())
