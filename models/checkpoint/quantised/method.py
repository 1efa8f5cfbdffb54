"""The quantised matrices of a folder: which tensors belong together, by config.json's `quantization_config`.

A linear layer NAME has its parts beside each other (`NAME.qweight`, `NAME.scales` …); the decoder sees one matrix
`NAME.weight`. What a method's settings ask for and no matrix here does is refused with the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, ValidationError, convert

from ...errors import CheckpointError, UnsupportedModel
from ..config import Config
from ..files import parse_object
from ..stored import CodedMatrix, StoredMatrix
from .floats import CodebookMatrix, Fp8Matrix
from .integers import ActOrderMatrix, AwqMatrix, ByteMatrix, GptqMatrix, PackedMatrix
from .mxfp4 import RawTensors, read_mxfp4

Array = npt.NDArray[Any]
FLOATS = (np.float16, np.uint16, np.float32)  # uint16: bfloat16 bits
STATE_BYTES = 64 << 10
REMEDY = (
    "AWQ, GPTQ, compressed-tensors, FP8, MXFP4, bitsandbytes and torchao are read; else take the unquantised checkpoint"
)
TORCHAO = (  # whose tensors are rows of bytes: torchao's Int8Tensor, IntxUnpackedToInt8Tensor and Float8Tensor
    "Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Int8StaticActivationInt8WeightConfig",
    "IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig",
    "Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig",
)  # fmt: skip


class QuantisedLayer:
    """The parts of one linear layer, each checked when it is taken."""

    def __init__(self, tensors: RawTensors, name: str, parts: set[str]) -> None:
        self.name, self.parts, self.taken = name, parts, set[str]()
        self._tensors = tensors

    def take(self, part: str, types: Iterable[type[np.generic]], *shape: int | None) -> Array:
        """The part; `shape` has None where any size will do. Without a shape: a number, a vector or a matrix."""
        place = f"{self.name}.{part}"
        if part not in self.parts:
            raise CheckpointError(place, None, "missing beside the other parts of this quantised layer")
        self.taken.add(part)
        array = self._tensors.raw(place)
        if array.dtype not in [np.dtype(kind) for kind in types]:
            raise CheckpointError(place, str(array.dtype), f"expected {' or '.join(kind.__name__ for kind in types)}")
        sizes = zip(shape, array.shape, strict=False)
        fits = all(wanted in (None, found) for wanted, found in sizes)
        if array.size == 0 or array.ndim > 2 or (shape and (array.ndim != len(shape) or not fits)):
            raise CheckpointError(place, array.shape, f"does not fit the other parts: expected {shape or 'a matrix'}")
        return array

    def scales(self, part: str) -> Array:
        """Scales as a matrix: one number and one per row become a column."""
        array = self.take(part, FLOATS)
        return array.reshape(-1, 1) if array.ndim < 2 else array

    def drop(self, *parts: str) -> None:
        """Parts that are about activations, which are quantised here in their own way."""
        self.taken |= self.parts.intersection(parts)


Read = Callable[[QuantisedLayer, Config], StoredMatrix]


def _awq(layer: QuantisedLayer, config: Config) -> StoredMatrix:
    scales = layer.take("scales", FLOATS, None, None)
    groups, outputs = scales.shape
    zeros = layer.take("qzeros", (np.int32,), groups, outputs // 8)
    words = layer.take("qweight", (np.int32,), None, outputs // 8)
    if outputs % 8 or len(words) % groups:
        raise CheckpointError(f"{layer.name}.scales", scales.shape, "the groups do not divide the inputs")
    return AwqMatrix(words, zeros, scales)


def _gptq(layer: QuantisedLayer, config: Config) -> StoredMatrix:
    bits, per_word = config.size("bits"), 32 // config.size("bits")
    scales = layer.take("scales", FLOATS, None, None)
    groups, outputs = scales.shape
    words = layer.take("qweight", (np.int32,), None, outputs)
    zeros = layer.take("qzeros", (np.int32,), groups, -(-outputs // per_word))
    less = 0 if config.text("checkpoint_format", "gptq") == "gptq_v2" else 1
    matrix = GptqMatrix(bits, words, zeros[:, : -(-outputs // per_word)], scales, less)
    return _in_order(layer, matrix, "g_idx", groups)


def _in_order(layer: QuantisedLayer, matrix: CodedMatrix, part: str, groups: int) -> StoredMatrix:
    """The matrix, or one with the groups of its inputs where they are not in order."""
    if part not in layer.parts:
        return matrix
    inputs = matrix.shape[1]
    index = layer.take(part, (np.int32,), inputs).astype(np.int64)
    if np.array_equal(index, np.arange(inputs) // matrix.layout.group):
        return matrix
    if index.min() < 0 or index.max() >= groups:
        raise CheckpointError(f"{layer.name}.{part}", int(index.max()), f"there are {groups} groups")
    return ActOrderMatrix(matrix, index)


def _compressed(layer: QuantisedLayer, config: Config) -> StoredMatrix:
    layer.drop("input_scale", "input_zero_point", "input_global_scale", "output_scale")
    scales = layer.scales("weight_scale")
    if "weight_packed" not in layer.parts:
        return _compressed_bytes(layer, config, scales)
    rows, groups = scales.shape
    shape = layer.take("weight_shape", (np.int64, np.int32), 2)
    outputs, inputs = int(shape[0]), int(shape[1])
    if rows != outputs or not 1 <= groups <= inputs:
        raise CheckpointError(f"{layer.name}.weight_shape", (outputs, inputs), f"scales are {scales.shape}")
    words = layer.take("weight_packed", (np.int32,), outputs, None)
    per_word = -(-inputs // words.shape[1])
    bits = {8: 4, 4: 8}.get(per_word)
    if bits is None:
        raise UnsupportedModel(f"{layer.name}.weight_packed", words.shape, "only 4 and 8 bits are read")
    zeros = None
    if "weight_zero_point" in layer.parts:
        zeros = layer.take("weight_zero_point", (np.int32,), -(-outputs // per_word), groups)
    return _in_order(layer, PackedMatrix(bits, words, scales, zeros, (outputs, inputs)), "weight_g_idx", groups)


def _compressed_bytes(layer: QuantisedLayer, config: Config, scales: Array) -> StoredMatrix:
    values = layer.take("weight", (np.int8, np.uint8), None, None)
    if values.dtype == np.uint8:
        layer.drop("weight_zero_point")
        return _fp8_of(layer, values, scales)
    return _byte_matrix(layer, values, scales, "weight_zero_point", "compressed-tensors int8")


def _byte_matrix(layer: QuantisedLayer, values: Array, scales: Array, zero_part: str, kind: str) -> StoredMatrix:
    """int8 with scales of groups, rows, or the matrix; a zero point for each scale, or none."""
    rows, groups = scales.shape
    if rows not in (1, len(values)) or groups > values.shape[1]:
        raise CheckpointError(f"{layer.name}.weight_scale", scales.shape, f"the weight is {values.shape}")
    zeros = None
    if zero_part in layer.parts:
        zeros = layer.take(zero_part, (np.int8,))
        if zeros.size != scales.size:
            raise CheckpointError(f"{layer.name}.{zero_part}", zeros.shape, f"the scales are {scales.shape}")
        zeros = np.broadcast_to(zeros.reshape(rows, groups), (len(values), groups))
        zeros = np.ascontiguousarray(zeros) if zeros.any() else None
    return ByteMatrix(values, scales, zeros, kind)


def _torchao(layer: QuantisedLayer, config: Config) -> StoredMatrix:
    """A tensor subclass taken apart, as torchao does for safetensors: its parts are named `_weight_PART`."""
    layer.drop("_weight_act_quant_scale", "_weight_act_quant_zero_point")
    values, scales = layer.take("_weight_qdata", (np.int8, np.uint8), None, None), layer.scales("_weight_scale")
    if values.dtype == np.uint8:
        return _fp8_of(layer, values, scales)
    return _byte_matrix(layer, values, scales, "_weight_zero_point", "torchao int8")


class TorchaoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`quant_type`, where all layers have the same."""

    default: dict[str, object]


def _refuse_torchao(config: Config) -> None:
    """What quantised the layers says how their bytes are meant; types that look alike differ in it."""
    try:
        settings = convert(config.values.get("quant_type"), TorchaoSettings)
    except ValidationError:
        raise config.unsupported("quant_type", "one setting for all layers is read, an object `default`") from None
    named = Config(settings.default, f"{config.prefix}quant_type.default.")
    if named.text("_type", "") not in TORCHAO:
        raise named.unsupported("_type", f"of torchao, these are read: {', '.join(TORCHAO)}")


def _fp8(layer: QuantisedLayer, config: Config) -> StoredMatrix:
    layer.drop("input_scale", "activation_scale")
    values = layer.take("weight", (np.uint8,), None, None)
    part = "weight_scale_inv" if "weight_scale_inv" in layer.parts else "weight_scale"
    return _fp8_of(layer, values, layer.scales(part), config.values.get("weight_block_size"))


def _fp8_of(layer: QuantisedLayer, values: Array, scales: Array, block_size: object = None) -> StoredMatrix:
    """One scale for the matrix, for each row, or for each block (128 x 128 where the config does not say)."""
    try:
        height, width = convert(block_size or (128, 128), tuple[int, int])
    except ValidationError as error:
        raise CheckpointError("quantization_config.weight_block_size", block_size, str(error)) from None
    outputs, inputs = values.shape
    if scales.shape in ((1, 1), (outputs, 1)):
        height, width = outputs // len(scales), inputs
    if min(height, width) < 1 or scales.shape != (-(-outputs // height), -(-inputs // width)):
        raise CheckpointError(f"{layer.name}.weight_scale", scales.shape, f"does not fit the weight {values.shape}")
    wide = (scales.astype(np.uint32) << 16).view(np.float32) if scales.dtype == np.uint16 else scales.astype(np.float32)
    return Fp8Matrix(values, wide, (height, width))


def _bitsandbytes(layer: QuantisedLayer, config: Config) -> StoredMatrix:
    if "SCB" in layer.parts:
        values = layer.take("weight", (np.int8,), None, None)
        scales = layer.take("SCB", (np.float32,), len(values))
        layer.drop("weight_format")
        return ByteMatrix(values, (scales / np.float32(127)).reshape(-1, 1), None, "bitsandbytes int8")
    state_part = next((part for part in sorted(layer.parts) if part.startswith("weight.quant_state.")), "")
    state = layer.take(state_part, (np.uint8,), None)
    if state.size > STATE_BYTES:
        raise CheckpointError(f"{layer.name}.{state_part}", state.size, "bytes of settings are too many")
    found = Config(parse_object(state.tobytes(), f"{layer.name}.{state_part}"), f"{layer.name}.quant_state.")
    try:
        shape = convert(found.values.get("shape"), tuple[int, int])
    except ValidationError as error:
        raise CheckpointError(f"{layer.name}.quant_state.shape", found.values.get("shape"), str(error)) from None
    block, count = found.size("blocksize"), shape[0] * shape[1]
    if min(shape) < 1 or count % 2:
        raise CheckpointError(f"{layer.name}.quant_state.shape", shape, "is not the shape of a packed matrix")
    values = layer.take("weight", (np.uint8,), count // 2, 1).reshape(-1)
    table = layer.take("weight.quant_map", (np.float32,), 16)
    blocks = -(-count // block)
    if "weight.nested_absmax" not in layer.parts:
        return CodebookMatrix(values, table, layer.take("weight.absmax", (np.float32,), blocks), block, shape)
    codes = layer.take("weight.absmax", (np.uint8,), blocks)
    nested_block = found.size("nested_blocksize")
    nested = layer.take("weight.nested_absmax", (np.float32,), -(-blocks // nested_block))
    nested_table = layer.take("weight.nested_quant_map", (np.float32,), 256)
    scales = nested_table[codes] * nested[np.arange(blocks) // nested_block]
    scales += np.float32(found.number("nested_offset", above=-1e30))
    return CodebookMatrix(values, table, scales, block, shape)


class Method(NamedTuple):
    """How one `quant_method` writes a layer."""

    read: Read
    marker: tuple[str, ...]  # a layer with one of these parts is quantised
    parts: tuple[str, ...]
    settings: dict[str, tuple[object, ...]]  # values that are read; a key that is missing is one of them


_APART = ("qdata", "scale", "zero_point", "act_quant_scale", "act_quant_zero_point", "act_pre_scale")
_PACKED = ("qweight", "qzeros", "scales", "g_idx")
_SCALED = ("weight", "weight_scale", "weight_scale_inv", "input_scale", "activation_scale", "output_scale")
METHODS = {
    "awq": Method(_awq, ("qweight",), _PACKED, {"bits": (4,), "version": ("gemm", "GEMM")}),
    "gptq": Method(_gptq, ("qweight",), _PACKED, {"bits": (4, 8), "checkpoint_format": ("gptq", "gptq_v2")}),
    "compressed-tensors": Method(
        _compressed,
        ("weight_packed", "weight_scale"),
        (*_SCALED, "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "input_zero_point"),
        {
            "format": ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"),
            "sparsity_config": ({}, None),
            "transform_config": ({}, None),
        },
    ),
    "fp8": Method(_fp8, ("weight_scale_inv", "weight_scale"), _SCALED, {"fmt": ("e4m3",)}),
    "torchao": Method(_torchao, ("_weight_qdata",), tuple(f"_weight_{part}" for part in _APART), {}),
    "bitsandbytes": Method(
        _bitsandbytes,
        ("SCB", "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"),
        (
            *("SCB", "weight_format", "weight", "weight.quant_map", "weight.absmax", "weight.nested_absmax"),
            *(
                "weight.nested_quant_map",
                "weight.quant_state.bitsandbytes__nf4",
                "weight.quant_state.bitsandbytes__fp4",
            ),
        ),
        {},
    ),
}


class Quantised(NamedTuple):
    """The quantised matrices by their weights' names, and the tensors that they are made of."""

    matrices: dict[str, StoredMatrix]
    parts: frozenset[str]


def read_quantised(values: Mapping[str, object], tensors: RawTensors) -> Quantised:
    """By config.json's `quantization_config`; empty without one."""
    config = Config(values).mapping("quantization_config")
    if config is None:
        return Quantised({}, frozenset())
    name = config.text("quant_method", "")
    if name == "mxfp4":
        return Quantised(*read_mxfp4(tensors))
    if name not in METHODS:
        raise config.unsupported("quant_method", REMEDY)
    if name == "torchao":
        _refuse_torchao(config)
    method = METHODS[name]
    for key, allowed in method.settings.items():
        if config.has(key):
            config.must_be(key, *allowed, remedy=f"of {name}, these are read: {', '.join(map(repr, allowed))}")
    matrices, taken = dict[str, StoredMatrix](), set[str]()
    for layer in _layers(method, tensors):
        matrices[f"{layer.name}.weight"] = method.read(layer, config)
        if layer.parts != layer.taken:
            left = sorted(layer.parts - layer.taken)[0]
            raise UnsupportedModel(f"{layer.name}.{left}", name, "a part of this layer that is not understood")
        taken |= {f"{layer.name}.{part}" for part in layer.taken}
    return Quantised(matrices, frozenset(taken))


def _layers(method: Method, tensors: RawTensors) -> Iterator[QuantisedLayer]:
    """The layers that have a marker, in the order of their names."""
    found = dict[str, set[str]]()
    for name in tensors.names():
        for part in method.parts:
            if name.endswith(f".{part}"):
                found.setdefault(name[: -len(part) - 1], set()).add(part)
    for name, parts in sorted(found.items()):
        if parts.intersection(method.marker):
            yield QuantisedLayer(tensors, name, parts)
