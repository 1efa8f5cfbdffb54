"""The encoder against transformers: the definition, the runner in each format, any batch, and errors that must show."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace

from triolet.kernels.simd.formats import WeightFormat
from triolet.models.encoder.checkpoint import EncoderCheckpoint
from triolet.models.encoder.head import apply_head
from triolet.models.encoder.memory import EncoderSizes
from triolet.models.encoder.runner import EncoderRunner, Text
from triolet.models.encoder.spec import EncoderLayerSpec, EncoderSpec
from triolet.models.encoder.weights import EncoderWeights, load_encoder_weights
from triolet.models.reference.encoder import reference_hidden

from .encoder_cases import TOLERANCE, VARIANTS, EncoderCase, FloatArray

Cases = Callable[[str], EncoderCase]

SIZES = EncoderSizes(weight_format="float32", max_step_tokens=400, max_length=180, max_texts=8, threads=2)


@contextmanager
def running(case: EncoderCase, sizes: EncoderSizes = SIZES) -> Generator[tuple[EncoderCheckpoint, EncoderRunner]]:
    checkpoint = EncoderCheckpoint(case.folder)
    runner = EncoderRunner(checkpoint.spec, load_encoder_weights(checkpoint, checkpoint.spec), sizes)
    try:
        yield checkpoint, runner
    finally:
        runner.close()


def texts_of(case: EncoderCase) -> list[Text]:
    tokens = [np.array(text, np.int32) for text in case.texts]
    return [Text(text, second) for text, second in zip(tokens, case.second, strict=True)]


def distance(found: list[FloatArray], wanted: list[FloatArray]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_definition_and_the_runner_agree_with_transformers(encoder_case: Cases, variant: str) -> None:
    case = encoder_case(variant)
    with running(case) as (checkpoint, runner):
        spec, weights = checkpoint.spec, load_encoder_weights(checkpoint, checkpoint.spec)
        assert distance(definition(case, spec, weights), case.hidden) < TOLERANCE
        texts = texts_of(case)
        together = [hidden.copy() for hidden in runner.forward(texts)]
        assert distance(together, case.hidden) < TOLERANCE
        backwards = [hidden.copy() for hidden in runner.forward(texts[::-1])][::-1]
        for text, one, other in zip(texts, together, backwards, strict=True):
            assert np.array_equal(one, other)
            assert np.array_equal(one, runner.forward([text])[0])
        other_end = Text(np.append(texts[1].tokens[:-1], texts[1].tokens[-1] ^ 1), texts[1].second)
        assert distance([runner.forward([other_end])[0][:1]], [case.hidden[1][:1]]) > 3 * TOLERANCE  # not causal
        if case.scores:
            head = checkpoint.head(weights.classifier)
            assert distance([apply_head(head, hidden) for hidden in together], case.scores) < TOLERANCE


def definition(case: EncoderCase, spec: EncoderSpec, weights: EncoderWeights) -> list[FloatArray]:
    found: list[FloatArray] = []
    for text, second in zip(case.texts, case.second, strict=True):
        types = [int(0 < second <= place) for place in range(len(text))]
        found.append(reference_hidden(spec, weights, text, types))
    return found


def _reach_off_by_one(spec: EncoderSpec, weights: EncoderWeights) -> tuple[EncoderSpec, EncoderWeights]:
    layers = tuple(replace(layer, reach=layer.reach + 1) for layer in spec.layers)
    return replace(spec, layers=layers), weights


def _one_rotary_base(spec: EncoderSpec, weights: EncoderWeights) -> tuple[EncoderSpec, EncoderWeights]:
    layers = tuple(EncoderLayerSpec(layer.reach, spec.layers[0].rope) for layer in spec.layers)
    return replace(spec, layers=layers), weights


def _no_types(spec: EncoderSpec, weights: EncoderWeights) -> tuple[EncoderSpec, EncoderWeights]:
    return spec, replace(weights, types=None)


def _positions_from_zero(spec: EncoderSpec, weights: EncoderWeights) -> tuple[EncoderSpec, EncoderWeights]:
    return replace(spec, first_position=0), weights


def _norms_before(spec: EncoderSpec, weights: EncoderWeights) -> tuple[EncoderSpec, EncoderWeights]:
    return replace(spec, norms_after=not spec.norms_after), weights


def _other_gelu(spec: EncoderSpec, weights: EncoderWeights) -> tuple[EncoderSpec, EncoderWeights]:
    return replace(spec, activation="gelu" if spec.activation == "gelu_tanh" else "gelu_tanh"), weights


Planted = Callable[[EncoderSpec, EncoderWeights], tuple[EncoderSpec, EncoderWeights]]
PLANTED: list[tuple[str, Planted]] = [
    ("modernbert", _reach_off_by_one),
    ("modernbert", _one_rotary_base),
    ("bert", _no_types),
    ("xlm-roberta", _positions_from_zero),
    ("distilbert", _norms_before),
    ("modernbert", _norms_before),
    ("bert-masked", _other_gelu),
    ("bert", _other_gelu),
]


@pytest.mark.parametrize(("variant", "plant"), PLANTED)
def test_a_planted_error_shows(encoder_case: Cases, variant: str, plant: Planted) -> None:
    case = encoder_case(variant)
    checkpoint = EncoderCheckpoint(case.folder)
    spec, weights = plant(checkpoint.spec, load_encoder_weights(checkpoint, checkpoint.spec))
    assert distance(definition(case, spec, weights), case.hidden) > 3 * TOLERANCE


@pytest.mark.parametrize(
    ("variant", "weight_format", "least"), [("bert", "bfloat16", 0.999), ("modernbert", "int8", 0.98)]
)
def test_narrow_weights_stay_near(encoder_case: Cases, variant: str, weight_format: WeightFormat, least: float) -> None:
    """Cosines of hidden states: 8 bits of a value are 0.4 % of the row's largest, and errors of layers add up."""
    case = encoder_case(variant)
    with running(case, replace(SIZES, weight_format=weight_format)) as (_, runner):
        for found, wanted in zip(runner.forward(texts_of(case)), case.hidden, strict=True):
            cosine = np.sum(found * wanted) / np.sqrt(np.sum(found**2) * np.sum(wanted**2))
            assert least < cosine < 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [([1] * 181, "max_length"), ([1 << 20], "vocabulary"), ([-1], "vocabulary"), ([], "step"), ([1] * 401, "step")],
)
def test_a_text_beyond_the_bounds_is_refused(encoder_case: Cases, text: list[int], message: str) -> None:
    with running(encoder_case("bert")) as (_, runner):
        assert len(runner.forward([Text(np.ones(180, np.int32))])[0]) == 180
        with pytest.raises(ValueError, match=message):
            runner.forward([Text(np.array(text, np.int32))])
        with pytest.raises(ValueError, match="max_texts"):
            runner.forward([Text(np.ones(1, np.int32))] * 9)
