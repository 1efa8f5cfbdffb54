"""Whole models in every weight and cache format: the log probabilities of a float64 model with the same roundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from msgspec.structs import replace

from triolet.kernels.gemm.gpu_weights import GROUPS, quantise_fp8, quantise_int8, quantise_w4
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.gpu.staging import host_tensor
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.steps import Chunk

from .gpu_house import SPEC, Driver, make_gpu_model, prompt_of, record, weights_of

Tensor = torch.Tensor
LENGTH = 12
# Of weights, of the cache.
FORMATS = [
    ("int8", "fp8"), ("int4", "bfloat16"), ("fp8", "int8"), ("w8a8", "bfloat16"), ("fp8-block", "bfloat16"),
    ("float32", "float32"),
]  # fmt: skip
WHOLE_BLOCKS = replace(SPEC, hidden_size=128, num_kv_heads=2, mlp_size=128)  # none has rows of two matrices
# Mean distance of the log probabilities of eleven tokens. bfloat16: ten roundings of 2^-9 to logits of up to 16, of
# which a mean leaves a fifth. An e4m3 cache rounds keys and values by 2^-4, and the mean over eight positions and 64
# inputs leaves an eighth of it, in two layers; e4m3 activations do so in all eight products. Those of int8 are three
# eighths as coarse: steps of 3 / 127 instead of 2^-4. Roundings of float32 are 2^-15 of bfloat16's, and sums of 64
# products in another order up to eight times that.
TOLERANCE = {
    "none": 0.06, "int4": 0.06, "int8": 0.2, "fp8": 0.4, "w8a8": 0.15, "fp8-block": 0.4, "float32": 0.06 / 4096,
}  # fmt: skip


def stored_int8(matrix: Tensor) -> Tensor:
    integers, scales = quantise_int8(matrix)
    return integers.float() * scales[:, None]


def stored_int4(matrix: Tensor) -> Tensor:
    group = max(size for size in GROUPS if matrix.shape[1] % size == 0)
    integers, scales, zeros = quantise_w4(matrix, group, symmetric=False)
    assert zeros is not None
    whole = (integers.reshape(len(matrix), -1, group).float() - zeros.float()[:, :, None]) * scales.float()[:, :, None]
    return whole.flatten(1)


def stored_fp8(matrix: Tensor) -> Tensor:
    values, scales = quantise_fp8(matrix, 1, 0)
    return values.float() * scales[:, None]


def stored_blocks(matrix: Tensor) -> Tensor:
    values, scales = quantise_fp8(matrix, 128, 128)
    return values.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)


STORED: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda matrix: matrix,
    "float32": lambda matrix: matrix,
    "int8": stored_int8,
    "int4": stored_int4,
    "fp8": stored_fp8,
    "w8a8": stored_int8,
    "fp8-block": stored_blocks,
}


def spec_of(quantize: str) -> ModelSpec:
    return WHOLE_BLOCKS if quantize == "fp8-block" else SPEC


def rounded_weights(quantize: str, wrong_scale: float = 1.0) -> DecoderWeights:
    """What the device multiplies with, as float32. The head is never quantised. `wrong_scale`: of one matrix."""
    weights = weights_of(spec_of(quantize))
    names = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        replace(layer, **{name: STORED[quantize](host_tensor(getattr(layer, name)).float()).numpy() for name in names})
        for layer in weights.layers
    )
    first = replace(layers[0], down=layers[0].down * np.float32(wrong_scale))
    return replace(weights, layers=(first, *layers[1:]))


@pytest.fixture(scope="module", params=FORMATS, ids=lambda formats: "-".join(formats))
def case(request: pytest.FixtureRequest) -> Iterator[tuple[str, GpuStepper]]:
    quantize, kv_cache_dtype = request.param
    stepper = GpuStepper(make_gpu_model(quantize=quantize, kv_cache_dtype=kv_cache_dtype, spec=spec_of(quantize)))
    yield quantize, stepper
    stepper.close()


def log_probabilities(
    weights: DecoderWeights, prompt: tuple[int, ...], spec: ModelSpec = SPEC
) -> npt.NDArray[np.float64]:
    """Of the prompt's tokens but the first, by the reference."""
    logits = reference_logits(spec, weights, list(prompt)).astype(np.float64)[:-1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.asarray(shifted[np.arange(len(prompt) - 1), list(prompt[1:])], np.float64)


@pytest.mark.parametrize("strict", [False, True])
def test_log_probabilities(case: tuple[str, GpuStepper], strict: bool) -> None:
    quantize, gpu = case
    prompt, driver = prompt_of(LENGTH, 50), Driver(gpu)
    driver.step(
        Chunk(sequence=1, start=0, count=7, blocks=(3,), prompt_logprobs=True),
        new=[record(1, prompt, prompt_logprobs=1, strict=strict)],
    )
    driver.step(Chunk(sequence=1, start=7, count=5, sample=True, prompt_logprobs=True))
    driver.step(dropped=[1])
    found = np.array([score.logprob for step in driver.drain() for row in step for score in row.prompt_logprobs])
    distances = [
        np.abs(found - log_probabilities(rounded_weights(quantize, wrong_scale), prompt, spec_of(quantize))).mean()
        for wrong_scale in (1.0, 1.01 if quantize == "float32" else 1.5)
    ]
    assert distances[0] < TOLERANCE[quantize] < distances[1]
    assert (driver.done[-1].device_allocations, driver.done[-1].device_compilations) == (0, 0)
