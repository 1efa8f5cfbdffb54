"""Whole models with experts on the rehearsal device, in every weight format and beside dense layers: the log
probabilities of the definition with the same roundings, of a prompt and of rows that decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.kernels.experts.routing import Routing
from triolet.loadtest.device.gpu_model_values import OF_WEIGHTS, as_stored, small_weights
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.steps import Chunk

from .gpu_house import SPEC, Driver, make_gpu_model, prompt_of, record

FloatArray = npt.NDArray[np.float64]
LENGTH, DECODED = 9, 3
SPARSE, DENSE = LayerSpec(experts=True), LayerSpec()
SHARED = ExpertSpec(count=6, width=64, routing=Routing(chosen=2), shared_width=32, shared_gated=True)
GROUPED = Routing(chosen=3, scores="sigmoid", normalised=True, scale=1.5, groups=4, chosen_groups=2, group_best=2)
# name: layers, experts, weights
MODELS: dict[str, tuple[tuple[LayerSpec, ...], ExpertSpec, str]] = {
    "beside dense layers": ((DENSE, SPARSE), SHARED, "none"),
    "corrected groups": (
        (SPARSE,), ExpertSpec(count=8, width=40, corrected=True, shared_width=24, routing=GROUPED), "int8",
    ),
    "biased and clamped": (
        (SPARSE,), ExpertSpec(count=5, width=64, routing=Routing(chosen=2, scores="softmax of chosen"), biased=True,
                            gate_limit=1.2, gate_slope=1.7, up_offset=1.0),
        "int4",
    ),
    "quantised activations": ((SPARSE,), SHARED, "fp8"),
}  # fmt: skip


def spec_of(name: str) -> ModelSpec:
    layers, experts, _ = MODELS[name]
    return replace(SPEC, layers=layers, experts=experts, qkv_bias=True, mlp_size=SPEC.mlp_size * (DENSE in layers))


def normalised(logits: npt.NDArray[np.float32]) -> FloatArray:
    """Log probabilities."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)), np.float64)


@dataclass(frozen=True)
class Found:
    """On the device."""

    tokens: tuple[int, ...]  # all whose next one was asked for
    prompt: FloatArray  # log probabilities of the prompt's tokens but the first
    decoded: FloatArray  # [DECODED, vocab]: of every token behind each row that decoded

    def distances(self, spec: ModelSpec, weights: DecoderWeights) -> tuple[float, float]:
        """Of the prompt and of the decoded rows, from the definition's."""
        rows = normalised(reference_logits(spec, weights, list(self.tokens)))
        prompt = rows[np.arange(LENGTH - 1), list(self.tokens[1:LENGTH])]
        return float(np.abs(prompt - self.prompt).mean()), float(np.abs(rows[-DECODED:] - self.decoded).mean())


@cache
def model_of(spec: ModelSpec, quantize: str) -> GpuModel:
    return make_gpu_model(spec=spec, weights=small_weights(spec), quantize=quantize, max_running=1, max_tokens=6)


def found(model: GpuModel, prompt: tuple[int, ...], *, strict: bool) -> Found:
    """The prompt in steps of six and of three tokens, so of other padding, and some tokens behind it."""
    driver, decoded = Driver(GpuStepper(model)), list[npt.NDArray[np.float32]]()
    driver.step(
        Chunk(sequence=1, start=0, count=6, blocks=(3,), prompt_logprobs=True),
        new=[record(1, prompt, prompt_logprobs=1, strict=strict)],
    )
    driver.step(Chunk(sequence=1, start=6, count=LENGTH - 6, sample=True, prompt_logprobs=True))
    for position in range(LENGTH, LENGTH + DECODED):
        driver.step(Chunk(sequence=1, start=position, count=1, sample=True))
        decoded.append(model.buffers["logits"][:1].numpy().copy())
    driver.step(dropped=[1])
    rows = [row for step in driver.drain() for row in step]
    assert (driver.done[-1].device_allocations, driver.done[-1].device_compilations) == (0, 0)
    scores = np.array([score.logprob for row in rows for score in row.prompt_logprobs])
    return Found((*prompt, *driver.tokens(1)[:DECODED]), scores, normalised(np.concatenate(decoded)))


Wrong = Callable[[ModelSpec, DecoderWeights], list[tuple[ModelSpec, DecoderWeights]]]


def check_model(spec: ModelSpec, quantize: str, wrong: Wrong, *, strict: bool) -> None:
    """Near the definition, in a prompt and in the rows that decode, and far from each wrong one."""
    weights = as_stored(small_weights(spec), quantize)
    on_device = found(model_of(spec, quantize), prompt_of(LENGTH, 50), strict=strict)
    own, *others = (on_device.distances(*one) for one in [(spec, weights), *wrong(spec, weights)])
    for part in range(2):
        assert own[part] < OF_WEIGHTS[quantize] < min(other[part] for other in others)


def other_experts(weights: DecoderWeights) -> DecoderWeights:
    """Each expert in the place of the one before it."""
    layers = (
        layer if layer.experts is None else replace(
            layer, experts=replace(layer.experts, experts=layer.experts.experts[1:] + layer.experts.experts[:1])
        )
        for layer in weights.layers
    )  # fmt: skip
    return replace(weights, layers=tuple(layers))


def wrong_models(spec: ModelSpec, weights: DecoderWeights) -> list[tuple[ModelSpec, DecoderWeights]]:
    """With other experts, and with an expert fewer for each token."""
    assert spec.experts is not None
    fewer = replace(spec.experts.routing, chosen=spec.experts.routing.chosen - 1)
    return [(spec, other_experts(weights)), (replace(spec, experts=replace(spec.experts, routing=fewer)), weights)]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_those_of_the_definition(name: str, strict: bool) -> None:
    check_model(spec_of(name), MODELS[name][2], wrong_models, strict=strict)
