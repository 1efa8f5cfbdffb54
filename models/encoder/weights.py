"""Loads the weights of one encoder from a checkpoint's tensors. Every name is expected, every shape checked.

As in checkpoint/weights.py each expected tensor is popped, and what is left over is refused, but for a head of the
pre-training (the spec's `unused` names): an encoder's file often keeps one that no embedding needs.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..checkpoint.safetensors import WeightArray
from ..checkpoint.stored import StoredMatrix, Weight
from ..errors import CheckpointError, UnsupportedModel
from .spec import Classifier, EncoderSpec


class Tensors(Protocol):
    """The part of a checkpoint that holds the weights."""

    @property
    def tensor_names(self) -> frozenset[str]: ...

    def tensor_shape(self, name: str) -> tuple[int, ...]: ...

    def read_tensor(self, name: str) -> Weight: ...


class Affine(Struct, frozen=True):
    """A matrix [out, in] with its bias, or a norm's weight [size] with its shift."""

    weight: WeightArray
    bias: WeightArray | None


class EncoderLayer(Struct, frozen=True):
    """One layer. `up` is (up,), or (gate, up) where the MLP has a gate."""

    qkv: tuple[Affine, Affine, Affine]
    out: Affine
    mix_norm: Affine
    up: tuple[Affine, ...]
    down: Affine
    next_norm: Affine


class ClassifierWeights(Struct, frozen=True):
    dense: Affine
    norm: Affine | None
    out: Affine


class EncoderWeights(Struct, frozen=True):
    """Arrays as safetensors.py gives them: float32, or uint16 with bfloat16 bits."""

    embedding: WeightArray  # [vocab, hidden]
    positions: WeightArray | None  # [first_position + max_position, hidden]
    types: WeightArray | None  # [token_types, hidden]
    embedding_norm: Affine
    layers: tuple[EncoderLayer, ...]
    classifier: ClassifierWeights | None


def load_encoder_weights(
    source: Tensors, spec: EncoderSpec, report: ReportProgress = ignore_progress
) -> EncoderWeights:
    """Pop every weight of the spec."""
    left = set(source.tensor_names)
    names = spec.names
    prefix = names.prefix if f"{names.prefix}{names.embedding}.weight" in left else ""

    def take(name: str, *shape: int) -> WeightArray:
        if name not in left:
            raise CheckpointError(
                name, None, f"this weight is missing; a {spec.family} encoder of this config needs it"
            )
        found = source.tensor_shape(name)
        if found != shape:
            raise CheckpointError(name, found, f"config.json implies the shape {shape}")
        left.remove(name)
        array = source.read_tensor(name)
        if isinstance(array, StoredMatrix):
            raise UnsupportedModel(
                name, array.format, "quantised encoders are not read; use the original and --quantize"
            )
        return array

    def affine(name: str, *shape: int, bias: bool = True) -> Affine:
        return Affine(take(f"{name}.weight", *shape), take(f"{name}.bias", shape[0]) if bias else None)

    hidden = spec.hidden_size
    layers: list[EncoderLayer] = []
    embedding = take(f"{prefix}{names.embedding}.weight", spec.vocab_size, hidden)
    positions = types = None
    if names.positions is not None:
        rows = spec.first_position + spec.max_position
        positions = take(f"{prefix}{names.positions}.weight", rows, hidden)
    if names.types is not None:
        types = take(f"{prefix}{names.types}.weight", spec.token_types, hidden)
    embedding_norm = affine(prefix + names.embedding_norm, hidden, bias=spec.norm_bias)
    for index in range(len(spec.layers)):
        layers.append(_take_layer(affine, spec, prefix, index))
        report(LoadProgress(stage="reading weights", done=index + 1, total=len(spec.layers)))
    classifier = None if spec.classifier is None else _take_classifier(affine, spec, spec.classifier)
    for name in sorted(left):
        if not name.startswith(names.unused):
            raise CheckpointError(name, source.tensor_shape(name), "left over: the encoder has no such weight")
    return EncoderWeights(embedding, positions, types, embedding_norm, tuple(layers), classifier)


def _take_layer(affine: Callable[..., Affine], spec: EncoderSpec, prefix: str, index: int) -> EncoderLayer:
    names, hidden, mlp = spec.names, spec.hidden_size, spec.mlp_size

    def of_layer(name: str, *shape: int, bias: bool) -> Affine:
        return affine(prefix + name.format(index), *shape, bias=bias)

    own = spec.attention_bias
    if len(names.qkv) == 1:
        query, key, value = _split(of_layer(names.qkv[0], 3 * hidden, hidden, bias=own), 3)
    else:
        query, key, value = (of_layer(name, hidden, hidden, bias=own) for name in names.qkv)
    up = of_layer(names.up, (1 + spec.gated) * mlp, hidden, bias=spec.mlp_bias)
    is_last = index + 1 == len(spec.layers)
    next_norm = names.last_norm if is_last and names.last_norm else names.next_norm.format(index + names.next_of)
    return EncoderLayer(
        qkv=(query, key, value),
        out=of_layer(names.out, hidden, hidden, bias=own),
        mix_norm=of_layer(names.mix_norm, hidden, bias=spec.norm_bias),
        up=_split(up, 1 + spec.gated),
        down=of_layer(names.down, hidden, mlp, bias=spec.mlp_bias),
        next_norm=affine(prefix + next_norm, hidden, bias=spec.norm_bias),
    )


def _split(fused: Affine, parts: int) -> tuple[Affine, ...]:
    size = len(fused.weight) // parts
    cuts = [slice(part * size, (part + 1) * size) for part in range(parts)]
    return tuple(Affine(fused.weight[cut], None if fused.bias is None else fused.bias[cut]) for cut in cuts)


def _take_classifier(affine: Callable[..., Affine], spec: EncoderSpec, classifier: Classifier) -> ClassifierWeights:
    hidden = spec.hidden_size
    return ClassifierWeights(
        dense=affine(classifier.dense, hidden, hidden, bias=classifier.dense_bias),
        norm=None if classifier.norm is None else affine(classifier.norm, hidden, bias=spec.norm_bias),
        out=affine(classifier.out, len(classifier.labels), hidden),
    )
