"""Writes GGUF files for tests, well formed unless asked otherwise."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt
from msgspec import Struct

from triolet.models.checkpoint.gguf.types import NUMBERS

LAYOUTS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"),
           "f32": (6, "f"), "bool": (7, "B"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}  # fmt: skip


class Typed(Struct, frozen=True):
    """A metadata value whose type is not the one that its Python type suggests. "raw": (type number, bytes)."""

    kind: str
    value: Any


class Tensor(Struct, frozen=True):
    type: str
    shape: tuple[int, ...]  # slowest dimension first
    data: bytes
    offset: int | None = None  # None: the next multiple of the alignment


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """Type number and content."""
    kind, content = _body(item)
    return struct.pack("<I", kind) + content


def _body(item: Any) -> tuple[int, bytes]:
    if isinstance(item, Typed):
        if item.kind == "raw":
            return cast("tuple[int, bytes]", item.value)
        number, layout = LAYOUTS[item.kind]
        if not isinstance(item.value, list):
            return number, struct.pack("<" + layout, item.value)
        numbers = cast("list[float]", item.value)
        return 9, struct.pack("<IQ", number, len(numbers)) + struct.pack(f"<{len(numbers)}{layout}", *numbers)
    if isinstance(item, list):
        inside = _bodies(cast("list[Any]", item))  # type: ignore[redundant-cast] # mypy's list[Any] is pyright's unknown
        kind = inside[0][0] if inside else LAYOUTS["u8"][0]
        return 9, struct.pack("<IQ", kind, len(inside)) + b"".join(data for _, data in inside)
    if isinstance(item, str | bytes):
        return 8, text(item)
    return _body(Typed({bool: "bool", int: "u32", float: "f32"}[type(item)], item))


def _bodies(items: list[Any]) -> list[tuple[int, bytes]]:
    return [_body(item) for item in items]


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file. `counts`: what the header says instead of the numbers of tensors and pairs."""
    tensors = tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(metadata))))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        offset = len(data) if tensor.offset is None else tensor.offset
        head += (
            text(name)
            + struct.pack("<I", len(tensor.shape))
            + struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        )
        head += struct.pack("<IQ", NUMBERS[tensor.type], offset)
        data += tensor.data + bytes(-len(tensor.data) % alignment)
    return head + bytes(-len(head) % alignment) + data


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, **how: Any
) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors, **how))
    return path


def plain(array: npt.NDArray[Any]) -> Tensor:
    """A tensor of float32, float16, or uint16 that holds bfloat16."""
    name = {"float32": "F32", "float16": "F16", "uint16": "BF16"}[array.dtype.name]
    return Tensor(name, array.shape, array.tobytes())
