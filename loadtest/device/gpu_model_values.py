"""What a model on a device computes, against values: of a small model the definition's, of a large one its own default.

The small model's weights are such that every matrix matters; the definition multiplies with what quantising left of
them. Tolerances are of the mean distance of log probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct, structs

from triolet.kernels.gemm.gpu_reference import dequantised, dequantised_w4
from triolet.kernels.gemm.gpu_weights import GROUPS, quantise_fp8, quantise_int8, quantise_w4
from triolet.loadtest.device.gpu_case import Figures
from triolet.loadtest.device.gpu_check import require
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_requests import SCORED, Request, answers
from triolet.loadtest.device.random_adapter import merged, random_adapter, scaled
from triolet.loadtest.device.random_model import DEVIATION, TINY, bfloat16_bits
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights, LayerWeights, make_weights
from triolet.models.gpu.device import Device
from triolet.models.gpu.staging import host_tensor
from triolet.models.gpu.stored import FLOAT32
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.sampling import Sampling

Named = TypeVar("Named", bound=Struct)
Float64Array = npt.NDArray[np.float64]
PROMPT_SCORED = structs.replace(SCORED, prompt_logprobs=1)
SMALL = structs.replace(TINY, layers=alike(2), qkv_bias=True)
WHOLE_BLOCKS = structs.replace(SMALL, hidden_size=128, num_kv_heads=2, mlp_size=128)  # none has rows of two matrices
SMALL_SIZES = Sizes(max_running=2, max_step_tokens=64, max_model_len=192, kv_bytes=1 << 20)
MERGED_SIZES = Sizes(max_running=3, max_step_tokens=64, max_model_len=192, kv_bytes=1 << 20)
# bfloat16: ten roundings of 2^-9 to logits of up to 16, of which a mean leaves a fifth. An e4m3 cache rounds keys and
# values by 2^-4, and the mean over positions and 64 inputs leaves an eighth of it, in two layers; an int8 one rounds by
# 1/254 of the largest of 64, a sixth of that. e4m3 activations are rounded by 2^-4 in all eight products, those of
# int8 by a quarter of that.
OF_WEIGHTS = {"none": 0.06, "int8": 0.06, "int4": 0.06, "w8a8": 0.15, "fp8": 0.37, "fp8-block": 0.37}
OF_CACHE = {"bfloat16": 0.0, "int8": 0.03, "fp8": 0.14}
OF_FLOAT32 = OF_WEIGHTS["none"] / 4096  # roundings are 2^-15 of bfloat16's; sums in another order, fast exponentials
WRONG_SCALE = 2.0  # of one matrix of seven in one layer of two: the least that a check of every format must notice


def small_weights(spec: ModelSpec, kept: dict[str, WeightArray] | None = None) -> DecoderWeights:
    """bfloat16 bits, also `kept` by the names of a checkpoint.

    Products keep the size of their inputs, norms and biases are all different.
    """
    rng = np.random.default_rng(5)
    deviations = {"model.embed_tokens.weight": 1.0, "lm_head.weight": 0.5}

    def take(name: str, *shape: int) -> WeightArray:
        mean, deviation = 0.0, deviations.get(name, shape[-1] ** -0.5)
        if len(shape) == 1:
            mean, deviation = (0.0, 0.2) if name.endswith("bias") else (1.0, 0.1)
        array = bfloat16_bits(mean + np.float32(deviation) * rng.standard_normal(shape, dtype=np.float32))
        if kept is not None:
            kept[name] = array
        return array

    return make_weights(spec, take)


def _int4(matrix: torch.Tensor) -> torch.Tensor:
    group = max(size for size in GROUPS if matrix.shape[1] % size == 0)
    return dequantised_w4(*quantise_w4(matrix, group, symmetric=False), group)


STORED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda matrix: matrix,
    FLOAT32: lambda matrix: matrix,
    "int8": lambda matrix: dequantised(*quantise_int8(matrix)),
    "int4": _int4,
    "w8a8": lambda matrix: dequantised(*quantise_int8(matrix)),
    "fp8": lambda matrix: dequantised(*quantise_fp8(matrix, 1, 0)),
    "fp8-block": lambda matrix: dequantised(*quantise_fp8(matrix, 128, 128)),
}


def as_stored(weights: DecoderWeights, quantize: str, wrong_scale: float = 1.0) -> DecoderWeights:
    """What the device multiplies with, as float32: the head, routers and each latent head's matrices stay.

    `wrong_scale`: of one matrix.
    """

    def stored(matrix: WeightArray | None) -> WeightArray | None:
        if matrix is None or not matrix.size:
            return matrix
        return STORED[quantize](host_tensor(matrix).float()).float().numpy()

    def with_stored(one: Named, *names: str) -> Named:
        return structs.replace(one, **{name: stored(getattr(one, name)) for name in names})

    def layer(one: LayerWeights) -> LayerWeights:
        mlp, experts = ("gate", "up", "down"), one.experts
        if experts is not None:
            shared = None if experts.shared is None else with_stored(experts.shared, *mlp)
            each = tuple(with_stored(expert, *mlp) for expert in experts.experts)
            experts = structs.replace(experts, experts=each, shared=shared)
        latent = None if one.latent is None else with_stored(one.latent, "query", "query_down", "down")
        return structs.replace(with_stored(one, "q", "k", "v", "o", *mlp), experts=experts, latent=latent)

    first, *others = map(layer, weights.layers)
    first = structs.replace(first, down=first.down * np.float32(wrong_scale))
    return structs.replace(weights, layers=(first, *others))


def log_probabilities(spec: ModelSpec, weights: DecoderWeights, prompt: tuple[int, ...]) -> Float64Array:
    """Of all tokens of a prompt but the first, by the definition."""
    logits = reference_logits(spec, weights, list(prompt)).astype(np.float64)[:-1]
    logits -= logits.max(axis=1, keepdims=True)
    own: Float64Array = logits[np.arange(len(logits)), list(prompt[1:])]
    normalised: Float64Array = own - np.log(np.exp(logits).sum(axis=1))
    return normalised


def random_prompt(spec: ModelSpec, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(length).integers(0, spec.vocab_size, length).tolist())


def scored(model: LoadedGpuModel, request: Request, *, strict: bool) -> Float64Array:
    """The log probabilities of a prompt's tokens on the device."""
    (answer,), _ = answers(model, [request], 1, strict=strict)
    found = np.array([score.logprob for score in answer.prompt])
    require(len(found) == len(request.prompt) - 1, f"{len(found)} log probabilities of {len(request.prompt)} tokens")
    require(bool(np.isfinite(found).all()), "a log probability is not finite")
    return found


def check_definition(
    device: Device, quantize: str, cache: str, length: int, sizes: Sizes, wrong_scale: float = 1.0
) -> Figures:
    """The small model in one way of storing it. `wrong_scale`: of a matrix on the device, which must be noticed."""
    spec = WHOLE_BLOCKS if quantize == "fp8-block" else SMALL
    weights, prompt = small_weights(spec), random_prompt(spec, length)
    exact, wrong = (log_probabilities(spec, as_stored(weights, quantize, by), prompt) for by in (1.0, WRONG_SCALE))
    tolerance = OF_FLOAT32 if quantize == FLOAT32 else OF_WEIGHTS[quantize] + OF_CACHE[cache]
    require(float(np.abs(exact - wrong).mean()) > 2 * tolerance, "this check would not notice a wrong matrix")
    if wrong_scale != 1.0:
        first = weights.layers[0]
        down = (host_tensor(first.down).float() * wrong_scale).numpy()
        weights = structs.replace(weights, layers=(structs.replace(first, down=down), *weights.layers[1:]))
    figures: Figures = {"allowed": tolerance}
    with LoadedGpuModel(device, spec, quantize, sizes, cache, weights) as model:
        for strict in (False, True):
            found = scored(model, Request(prompt, (7,), sampling=PROMPT_SCORED), strict=strict)
            error = float(np.abs(found - exact).mean())
            name = "strict" if strict else "default"
            require(error <= tolerance, f"{name}: off by {error:.3g} on the mean, {tolerance:.3g} is allowed")
            figures[f"{name}_error"] = error
        return figures | model.growth()


def check_merged(device: Device, quantize: str, length: int, sizes: Sizes, wrong_scale: float = 1.0) -> Figures:
    """The small model without an adapter and with each of two, in one batch: as their merged weights.

    `wrong_scale`: of the adapters on the device, which must be noticed.
    """
    weights, prompt = small_weights(SMALL), random_prompt(SMALL, length)
    adapters, stored = [random_adapter(SMALL, seed) for seed in (1, 2)], as_stored(weights, quantize)
    exact = [log_probabilities(SMALL, stored, prompt)]
    exact += [log_probabilities(SMALL, merged(stored, adapter), prompt) for adapter in adapters]
    wrong = [log_probabilities(SMALL, merged(stored, scaled(adapter, WRONG_SCALE)), prompt) for adapter in adapters]
    tolerance = OF_WEIGHTS[quantize]
    pairs = zip((*exact, exact[1], exact[2]), (exact[1], exact[2], exact[0], *wrong), strict=True)
    apart = min(float(np.abs(one - other).mean()) for one, other in pairs)
    require(apart > 1.5 * tolerance, f"this check would not notice a wrong adapter: {apart:.3g} apart")
    requests = [Request(prompt, (7,), sampling=PROMPT_SCORED, adapter=number) for number in range(3)]
    figures: Figures = {"allowed": tolerance, "apart": apart}
    with LoadedGpuModel(device, SMALL, quantize, sizes, weights=weights, adapters=len(adapters)) as model:
        model.add_adapters([scaled(adapter, wrong_scale) for adapter in adapters])
        found, _ = answers(model, requests, 1, strict=False)
        for number, (answer, wanted) in enumerate(zip(found, exact, strict=True)):
            error = float(np.abs(np.array([score.logprob for score in answer.prompt]) - wanted).mean())
            require(error <= tolerance, f"adapter {number}: off by {error:.3g} on the mean, {tolerance:.3g} is allowed")
            figures[f"error_{number}"] = error
        return figures | model.growth()


def allowed_apart(spec: ModelSpec, quantize: str, cache: str) -> float:
    """How far strict log probabilities may be from the default's on the mean, in one layer of random weights.

    Sums in another order round ten results to a neighbour, at most 2^-8 away. Such a value, off by d and then rounded
    to steps of u, is off by the root of d u in mean square: in e4m3 u is up to 2^-3, in int8 1/127 of a largest that is
    four times the typical value. Errors of the last hidden state, relative to it, are errors of logits relative to
    their deviation.
    """
    steps = {"fp8": 2.0**-3, "int8": 2.0**-5}
    near = 2.0**-8
    relative = 10 * near + (4 * math.sqrt(near * steps["fp8"]) if quantize == "fp8" else 0.0)
    relative += 2 * math.sqrt(near * steps[cache]) if cache in steps else 0.0  # keys and values
    return relative * DEVIATION * math.sqrt(spec.hidden_size)


def check_against_default(model: LoadedGpuModel, cache: str, length: int) -> Figures:
    """Strict determinism computes the same thing in another order: on a prompt's log probabilities."""
    allowed = allowed_apart(model.spec, model.quantize, cache)
    request = Request(random_prompt(model.spec, length), sampling=PROMPT_SCORED)
    strict, default = (scored(model, request, strict=strict) for strict in (True, False))
    apart = float(np.abs(strict - default).mean())
    require(apart <= allowed, f"strict log probabilities are {apart:.3g} from the default's, {allowed:.3g} is allowed")
    others = float(np.abs(strict[1:] - default[:-1]).mean())
    require(others > 2 * allowed, "all log probabilities are alike: this check proves nothing")
    return {"strict_apart": apart, "strict_apart_allowed": allowed}


def sampled_in_every_way(vocab_size: int) -> list[Sampling]:
    """What few rows ask of the sampler: penalties, which count tokens; biases and bans; filters; alternatives."""
    return [
        Sampling(temperature=0.0, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1),
        Sampling(temperature=0.0, logit_bias=((1, 2.0), (vocab_size - 1, -100.0)), min_tokens=2),
        Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=7),
        structs.replace(PROMPT_SCORED, temperature=0.7, seed=8),
    ]
