"""A quantised layer in memory, for tests; layers in one file, for the fuzzer: a line of JSON, and the tensors' bytes.

The line has the settings, and the tensors' types and shapes. Where the bytes are too few they begin again.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from triolet.models.checkpoint.quantised.method import read_quantised
from triolet.models.checkpoint.stored import CodedMatrix, StoredMatrix

CORPUS = Path(__file__).with_name("corpus")
MOST_BYTES = 1 << 18  # of the tensors: in a real file they are bounded by the file
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
Array = npt.NDArray[Any]
Parts = dict[str, Array]
Size = Annotated[int, Meta(ge=0, le=1 << 20)]


class Layers(Struct, frozen=True):
    """The first line: `quantization_config`, and (type, shape) of each tensor by its name."""

    config: dict[str, object]
    tensors: dict[str, tuple[str, Annotated[tuple[Size, ...], Meta(max_length=4)]]]


class Held:
    """Tensors in memory, as a folder's files hold them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def names(self) -> list[str]:
        return list(self._parts)

    def raw(self, name: str) -> Array:
        return self._parts[name]


def read(method: Mapping[str, object], parts: Parts) -> StoredMatrix:
    """The only matrix; what is not part of it stays out."""
    plain = {"norm.weight": np.ones(4, np.float32), "a.linear.bias": np.ones(4, np.float32)}
    named = {f"a.linear.{name}": array for name, array in parts.items()}
    found = read_quantised({"quantization_config": method}, Held({**plain, **named}))
    assert list(found.matrices) == ["a.linear.weight"]
    assert found.parts == set(named)
    return found.matrices["a.linear.weight"]


KINDS = {"float16", "float32", "uint16", "int8", "uint8", "int32", "int64", "bool"}


def encoded(config: object, parts: Parts) -> bytes:
    line = {"config": config, "tensors": {name: (str(array.dtype), array.shape) for name, array in parts.items()}}
    return msgspec.json.encode(line) + b"\n" + b"".join(array.tobytes() for array in parts.values())


def decoded(data: bytes) -> tuple[dict[str, object], Parts] | None:
    line, _, rest = data.partition(b"\n")
    try:
        layers = msgspec.json.decode(line, type=Layers)
    except (ValueError, RecursionError):  # also of text that is not UTF-8
        return None
    if not all(kind in KINDS for kind, _ in layers.tensors.values()):
        return None
    sizes = {name: np.dtype(kind).itemsize * prod(shape) for name, (kind, shape) in layers.tensors.items()}
    if sum(sizes.values()) > MOST_BYTES:
        return None
    filled = np.resize(np.frombuffer(rest or b"\0", np.uint8), max(1, sum(sizes.values()))).tobytes()
    parts: Parts = {}
    position = 0
    for name, (kind, shape) in layers.tensors.items():
        part = filled[position : position + sizes[name]]
        parts[name] = np.frombuffer(bytes(byte & 1 for byte in part) if kind == "bool" else part, kind).reshape(shape)
        position += sizes[name]
    return layers.config, parts


def read_input(folder: Path, data: bytes) -> bool:
    """Whether these are quantised layers; the first and the last row of each are read, and all its codes."""
    del folder  # they are held in memory
    found = decoded(data)
    if found is None:
        return False
    config, parts = found
    quantised = read_quantised({"quantization_config": config}, Held(parts))
    for matrix in quantised.matrices.values():
        outputs, inputs = matrix.shape
        for first, last in ((0, 1), (outputs - 1, outputs)):
            assert matrix.rows(first, last).shape == (last - first, inputs)
        if isinstance(matrix, CodedMatrix):
            matrix.codes(0, outputs)
    return bool(quantised.matrices)
