"""Headers that llama.cpp's converter writes (converted.json) with random data, and the fuzzer's target."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from triolet.models.checkpoint.gguf.parts import Gguf
from triolet.models.errors import CheckpointError

from ..reading import read_weights
from ..text.reading import encodes
from .convert import CONVERTED
from .written import Tensor, Typed, plain, write_gguf

KINDS = {"UINT32": "u32", "INT32": "i32", "UINT64": "u64", "FLOAT32": "f32", "BOOL": "bool"}


@cache
def converted() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(CONVERTED.read_text())
    return found


def metadata_of(model: str) -> dict[str, Any]:
    """The pairs as `written` takes them."""
    pairs = converted()[model]["metadata"]
    return {key: value if kind == "STRING" else Typed(KINDS[kind], value) for key, (kind, value) in pairs.items()}


def tensors_of(model: str) -> dict[str, Tensor]:
    """Biases of the attention's output are zeros: Llama's config adds them, and the decoder has none."""
    rng = np.random.default_rng(0)
    header = converted()[model]
    found: dict[str, Tensor] = {}
    for name, shape in header["tensors"].items():
        for index in range(header["config"]["num_hidden_layers"] if "*" in name else 1):
            values = header["factors"].get(name, rng.normal(size=shape) * (name != "blk.*.attn_output.bias"))
            found[name.replace("*", str(index))] = plain(np.asarray(values, np.float32).reshape(shape))
    return found


def write_case(folder: Path, model: str, **more: Any) -> Path:
    """`more`: metadata besides that of the case."""
    return write_gguf(folder / "m.gguf", {**metadata_of(model), **more}, tensors_of(model))


def read_input(folder: Path, data: bytes) -> bool:
    """Whether the file is a checkpoint, or has texts; everything that its header promises is read."""
    path = folder / "m.gguf"
    path.write_bytes(data)
    file = Gguf(path)
    dict(file.metadata)
    for name in file.tensors:
        file.read(name)
    return [_tried(read, path) for read in (read_weights, encodes)] != [False, False]


def _tried(read: Callable[[Path], bool], path: Path) -> bool:
    try:
        return read(path)
    except CheckpointError:
        return False
