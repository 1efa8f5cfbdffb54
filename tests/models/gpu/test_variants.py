"""Whole models of every structure on the rehearsal device, against the definition: logits of a prompt in two chunks,
over two pages of the cache, and of drawn tokens.

The structures are those of the variants that test_parity.py compares with transformers. Here the weights are bfloat16,
and so is every result between two kernels. What that costs is measured, not guessed: the definition is run again with
its operations' results rounded, and the kernels may be two and a half times as far from it, in the root of the mean
square. Structural errors are planted in the definition: each must move the logits by twice what is allowed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.rope import gpu as rope
from triolet.kernels.rope.gpu import RopeLaunch
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, make_weights
from triolet.models.errors import UnsupportedModel
from triolet.models.gpu.buckets import Buckets, GpuSizes
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.gpu.stored import FLOAT32
from triolet.models.gpu.structure import refuse_structure
from triolet.models.reference import decoder as definition
from triolet.protocol.steps import Chunk

from ..parity_variants import VARIANTS, spec_of
from .gpu_house import Driver, record

FloatArray = npt.NDArray[np.float32]
DRAWN = 3  # variants of a run: each takes about ten seconds of one core
CHUNK, DECODED = 34, 2  # two chunks are more than a page, and more than the windows
ROUNDED = ("linear", "rotate", "norm", "head_norm", "activated", "softmax")


class OneShape(Buckets):
    """A prompt's chunk and a decode row, so that nothing else is compiled, and every row of both has its logits."""

    def __init__(self) -> None:
        super().__init__(max_tokens=CHUNK, max_chunks=1, max_rows=CHUNK)
        self.tokens, self.rows, self.decode = [CHUNK], [CHUNK], [1]

    @property
    def kinds(self) -> list[tuple[bool, bool]]:
        return [(False, False)]


def bfloat16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Bits, rounded to nearest."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def nearest(values: FloatArray) -> FloatArray:
    return (bfloat16(values).astype(np.uint32) << 16).view(np.float32)


class Summand(np.ndarray[Any, np.dtype[np.float32]]):  # Any: the shape
    """A result that rounds its sum with what stands before it: with the residual stream."""

    def __radd__(self, other: Any) -> Any:  # Any: numpy's own
        return nearest(np.asarray(other) + np.asarray(self))


def drawn_weights(spec: ModelSpec, seed: int) -> DecoderWeights:
    """With deviations as those of parity_cases.py: attention is far from uniform, and logits are near 1."""
    rng = np.random.default_rng(seed)

    def take(name: str, *shape: int) -> WeightArray:
        if "norm" in name and not name.endswith("bias"):
            return bfloat16(rng.uniform(0.5, 1.5, shape))
        deviation: Any = 0.1 if "embed" in name or "lm_head" in name else 0.2  # Any: or for each row
        if "q_proj.weight" in name or "k_proj.weight" in name:
            deviation = np.linspace(0.02, 0.35, shape[0])[:, None]  # so that a norm of all heads is none of each
        return bfloat16(rng.standard_normal(shape) * deviation + (2.0 if "sinks" in name else 0.0))

    return make_weights(spec, take)


def spec_here(variant: str, seed: int) -> ModelSpec:
    """Two layers show what differs between layers."""
    spec = spec_of(variant, random.Random(f"{variant} {seed}"))
    return replace(spec, layers=spec.layers[:2])


def accepted() -> list[str]:
    found = list[str]()
    for variant in VARIANTS:
        try:
            refuse_structure(spec_here(variant, 0))
        except UnsupportedModel:
            continue
        found.append(variant)
    return found


def computed(
    spec: ModelSpec, weights: DecoderWeights, prompt: list[int], **formats: Any
) -> tuple[list[int], FloatArray]:
    """All tokens but the last drawn one, and the logits behind each. Formats are Any: of GpuSizes."""
    sizes = GpuSizes(max_model_len=128, num_blocks=4, buckets=OneShape(), **formats)
    model = GpuModel(RehearsalDevice(), spec, weights, sizes)
    driver, rows = Driver(GpuStepper(model)), list[FloatArray]()
    asked = record(1, prompt, prompt_logprobs=1)
    for start in range(0, len(prompt), CHUNK):
        last = start + CHUNK == len(prompt)
        chunk = Chunk(sequence=1, start=start, count=CHUNK, blocks=(3,) if start == 0 else (1,), sample=last,
                      prompt_logprobs=True)  # fmt: skip
        driver.step(chunk, new=[asked] if start == 0 else [])
        rows.append(model.buffers["logits"].numpy().copy())
    for position in range(len(prompt), len(prompt) + DECODED):
        driver.step(Chunk(sequence=1, start=position, count=1, sample=True))
        rows.append(model.buffers["logits"][:1].numpy().copy())
    return [*prompt, *driver.tokens(1)[:DECODED]], np.concatenate(rows)


def rounded_logits(
    spec: ModelSpec, weights: DecoderWeights, tokens: list[int], names: tuple[str, ...] = ROUNDED
) -> FloatArray:
    """The definition's, with the results of these operations in bfloat16."""

    def rounded(operation: Callable[..., FloatArray], *operands: Any) -> FloatArray:  # Any: the operation's own
        return nearest(operation(*operands)).view(Summand)

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(definition, name, partial(rounded, getattr(definition, name)))
        return definition.reference_logits(spec, weights, tokens)


def distance(spec: ModelSpec, left: FloatArray, right: FloatArray) -> float:
    """The root of the mean square; of models with experts without the quarter of the rows that are furthest apart:
    where two experts are nearly equal a rounding chooses the other one, which moves a row by more than all roundings.
    """
    squares = np.sort(np.mean((left.astype(np.float64) - right) ** 2, axis=1))
    return float(np.sqrt(squares[: len(squares) * (3 if spec.experts is not None else 4) // 4].mean()))


def check_decoded(logits: FloatArray, exact: FloatArray, allowed: float) -> None:
    """`distance` may leave out all the rows that decoded. Another expert moves a row by up to thirty times what is
    allowed, but one of eleven rows at all; most of the prompt's rows are at least fourteen times as far from it. So the
    better of two is near, and not as near to a row of the prompt.
    """
    rows = exact[:-DECODED, None].astype(np.float64) - logits[None, -DECODED:]
    apart = np.sqrt(np.mean((exact[-DECODED:].astype(np.float64) - logits[-DECODED:]) ** 2, axis=1))
    assert apart.min() <= 4 * allowed
    assert np.median(np.sqrt(np.mean(rows**2, axis=2))) > 8 * allowed


def planted_errors(spec: ModelSpec) -> dict[str, ModelSpec]:
    """The spec without one thing that it has, or with another in its place."""
    wrong = dict[str, ModelSpec]()

    def with_layers(change: Callable[[LayerSpec], LayerSpec]) -> ModelSpec:
        return replace(spec, layers=tuple(change(layer) for layer in spec.layers))

    def other_rope(layer: LayerSpec, **changes: Any) -> LayerSpec:  # Any: fields of RopeSpec
        return replace(layer, rope=layer.rope and replace(layer.rope, **changes))

    wrong["theta"] = with_layers(lambda layer: other_rope(layer, theta=layer.rope.theta / 50 if layer.rope else 0.0))
    has_factors = any(layer.rope is not None and layer.rope.long_factors for layer in spec.layers)  # so many as pairs
    if any(layer.rope is not None and layer.rope.query_growth for layer in spec.layers):
        wrong["growth"] = with_layers(lambda layer: other_rope(layer, query_growth=2.0))
    if len({layer.rope for layer in spec.layers}) > 1:
        wrong["ropes of other layers"] = replace(spec, layers=spec.layers[::-1])
    # Of models with experts, `distance` leaves out most of the rows that lie behind a window.
    if spec.experts is None and any(layer.window and layer.window < CHUNK + CHUNK // 2 for layer in spec.layers):
        wrong["no windows"] = with_layers(lambda layer: replace(layer, window=None))
    defaults: dict[str, Any] = {  # Any: of the field
        "layer_norm": False, "parallel": False, "rotary_dim": None, "interleaved_rotary": False, "score_cap": None,
        "sinks": False, "embedding_factor": 1.0, "logit_factor": 1.0,
    }  # fmt: skip
    for field, default in defaults.items():
        if getattr(spec, field) != default and not (field == "rotary_dim" and has_factors):
            wrong[f"no {field}"] = replace(spec, **{field: default})
    for field, factor in {"query_scale": 2.0, "logit_cap": 0.2}.items():
        value: float | None = getattr(spec, field)
        if value is not None:
            wrong[field] = replace(spec, **{field: factor * value})
    if spec.qk_norm == "row":
        wrong["heads alone"] = replace(spec, qk_norm="heads")
    if spec.latent is not None:
        wrong["norms of latent vectors"] = replace(spec, latent=replace(spec.latent, norm_eps=1.0))
    if spec.experts is not None:
        doubled = replace(spec.experts.routing, scale=2 * spec.experts.routing.scale)
        wrong["weights of experts"] = replace(spec, experts=replace(spec.experts, routing=doubled))
    if not all(layer.experts for layer in spec.layers):
        wrong["activation"] = replace(spec, activation="silu" if spec.activation.startswith("relu") else "relu2")
    return wrong


def check(variant: str, seed: int) -> None:
    spec = spec_here(variant, seed)
    weights = drawn_weights(spec, seed)
    prompt = [int(token) for token in np.random.default_rng(seed).integers(0, spec.vocab_size, 2 * CHUNK)]
    tokens, logits = computed(spec, weights, prompt)
    exact = definition.reference_logits(spec, weights, tokens)
    allowed = 2.5 * distance(spec, rounded_logits(spec, weights, tokens), exact)
    found = distance(spec, logits, exact)
    print(f"{variant}, seed {seed}: {found:.5f} of {allowed:.5f}")
    assert found <= allowed
    if spec.experts is not None:
        check_decoded(logits, exact, allowed)
    for name, wrong in planted_errors(spec).items():
        moved = distance(spec, definition.reference_logits(wrong, weights, tokens), exact)
        print(f"  {name}: {moved:.5f}")
        assert moved >= 2 * allowed, name


@pytest.mark.parametrize("place", range(DRAWN))
def test_logits_are_those_of_the_definition(place: int, parity_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all heads of a token in one program: in the interpreter a program's size hardly costs, their number does."""
    monkeypatch.setattr(rope, "TABLE", {80: (LaunchRow(None, RopeLaunch(8, 4), "a test's"),)})
    check(random.Random(parity_seed).sample(accepted(), DRAWN)[place], parity_seed)


def test_float32_is_the_definition(parity_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roundings of float32 are 2^-15 of bfloat16's, and sums in another order cost up to eight times that. With one
    kind of operation rounded to bfloat16, the definition is further off than what is allowed.
    """
    monkeypatch.setattr(rope, "TABLE", {80: (LaunchRow(None, RopeLaunch(8, 4), "a test's"),)})
    draw = random.Random(parity_seed)
    variant = draw.choice([name for name in accepted() if spec_here(name, parity_seed).latent is None])
    spec = spec_here(variant, parity_seed)
    weights = drawn_weights(spec, parity_seed)
    prompt = [draw.randrange(spec.vocab_size) for _ in range(2 * CHUNK)]
    tokens, logits = computed(spec, weights, prompt, quantize=FLOAT32, kv_cache_dtype=FLOAT32)
    exact = definition.reference_logits(spec, weights, tokens)
    allowed = 2**-12 * distance(spec, rounded_logits(spec, weights, tokens), exact)
    found = distance(spec, logits, exact)
    print(f"{variant}, seed {parity_seed}: {found:.2e} of {allowed:.2e}")
    assert found <= allowed
    for name in ("linear", "norm", "softmax"):
        moved = distance(spec, rounded_logits(spec, weights, tokens, (name,)), exact)
        assert moved > 2 * allowed, name
