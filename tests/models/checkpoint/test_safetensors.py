"""The safetensors reader on files of our own making: what is right is read, every lie is a CheckpointError."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.models.checkpoint.safetensors import SafetensorsFile
from triolet.models.errors import CheckpointError

Entry = dict[str, object]
GOOD = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "F16", "shape": [2], "data_offsets": [32, 36]},
    "__metadata__": {"format": "pt"},
}
DATA = np.arange(6, dtype="<f4").tobytes() + b"\x80\x3f" * 4 + np.array([1.5, -2], "<f2").tobytes()


def write(folder: Path, header: object, data: bytes = DATA, padding: int = 0, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode() + b" " * padding
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return folder


@pytest.mark.parametrize("padding", [0, 1, 2, 3], ids=lambda padding: f"header padded by {padding}")
def test_reads_the_three_weight_types(tmp_path: Path, padding: int) -> None:
    """Whatever the header's length leaves of the data's alignment."""
    file = SafetensorsFile(write(tmp_path, GOOD, padding=padding), "model.safetensors")
    a, b, c = (file.read(name) for name in "abc")
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert a.dtype == np.float32
    assert b.dtype == np.uint16
    assert b.tolist() == [0x3F80] * 4  # the bits of 1.0
    assert c.dtype == np.float32
    assert c.tolist() == [1.5, -2]
    assert all(array.flags.aligned and array.flags.c_contiguous for array in (a, b, c))


def test_agrees_with_the_formats_own_library(tmp_path: Path) -> None:
    import safetensors.numpy

    tensors = {
        f"t{index}": np.random.default_rng(index).normal(size=(index, 3)).astype(np.float32) for index in range(4)
    }
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path, "x.safetensors")
    assert set(file.tensors) == set(tensors)
    for name, value in tensors.items():
        np.testing.assert_array_equal(file.read(name), value)


def entry(dtype: object = "F32", shape: object = (6,), offsets: object = (0, 24), **more: object) -> Entry:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


F24 = b"\0" * 24
LIES: dict[str, tuple[object, bytes, str]] = {
    "truncated data": (GOOD, DATA[:-1], "truncated"),
    "data behind the end": (GOOD, DATA + b"\0", "expected 36"),
    "overlap": ({"a": entry(), "b": entry("F32", [5], [4, 24])}, F24, "hole or overlap"),
    "same bytes twice": ({"a": entry(), "b": entry()}, F24, "hole or overlap"),
    "hole": ({"a": entry("F32", [5], [4, 24])}, F24, "hole or overlap"),
    "beyond the end": ({"a": entry("F32", [60], [0, 240])}, F24, "expected 240"),
    "offsets reversed": ({"a": entry("F32", [6], [24, 0])}, F24, "do not hold"),
    "shape too large": ({"a": entry("F32", [7])}, F24, "do not hold"),
    "shape overflow": ({"a": entry("F32", [2**40, 2**40, 2**40])}, F24, "do not hold"),
    "sizes beside nothing": ({"a": entry("F32", [0, 2**52, 2**52], [0, 0])}, b"", "do not hold"),
    "negative shape": ({"a": entry("F32", [-6])}, F24, "shape"),
    "float shape": ({"a": entry("F32", [6.5])}, F24, "shape"),
    "boolean shape": ({"a": entry("F32", [True])}, F24, "shape"),
    "deep shape": ({"a": entry("F32", [6] + [1] * 8)}, F24, "shape"),
    "huge offset": ({"a": entry("F32", [6], [0, 2**64])}, F24, "data_offsets"),
    "three offsets": ({"a": entry("F32", [6], [0, 24, 24])}, F24, "data_offsets"),
    "unknown type": ({"a": entry("F4")}, F24, "unknown tensor type"),
    "type no string": ({"a": entry(7)}, F24, "dtype"),
    "unknown key": ({"a": entry(code="exec")}, F24, "code"),
    "missing key": ({"a": {"dtype": "F32", "shape": [6]}}, F24, "data_offsets"),
    "entry no object": ({"a": 5}, F24, "object"),
    "header no object": ([1], F24, "JSON object"),
    "metadata no strings": ({"a": entry(), "__metadata__": {"x": 5}}, F24, "__metadata__"),
    "duplicate names": (b'{"a": {}, "a": {}}', b"", "duplicate key"),
    "not JSON": (b"\x00\xff{", b"", "JSON"),
    "another encoding": (json.dumps({"a": entry()}).encode("utf-32-le"), F24, "JSON"),
    "nested": (b'{"a":' + b"[" * 200_000, b"", "JSON"),
}


@pytest.mark.parametrize("name", list(LIES))
def test_lies_are_refused(name: str, tmp_path: Path) -> None:
    header, data, message = LIES[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(write(tmp_path, header, data), "model.safetensors")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("length", [len(json.dumps(GOOD)) + len(DATA) + 1, 2**40, 2**64 - 1])
def test_header_length_beyond_the_file(length: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="bytes of header"):
        SafetensorsFile(write(tmp_path, GOOD, length=length), "model.safetensors")


def test_header_larger_than_16_mib(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="16 MiB"):
        SafetensorsFile(write(tmp_path, GOOD, padding=17 << 20), "model.safetensors")


@pytest.mark.parametrize("size", [0, 7])
def test_almost_no_file(size: int, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * size)
    with pytest.raises(CheckpointError, match="damaged"):
        SafetensorsFile(tmp_path, "model.safetensors")


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    file = SafetensorsFile(write(tmp_path, {"a": entry("I32")}, F24), "model.safetensors")
    with pytest.raises(CheckpointError, match="F32, BF16 or F16"):
        file.read("a")


def test_a_long_name_is_not_printed_whole(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(write(tmp_path, {"x" * 10**6: entry("Q4")}, F24), "model.safetensors")
    assert len(str(caught.value)) < 2000


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_damage_is_an_error_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes overwritten, removed or added anywhere: either refused, or every tensor can still be read."""
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray((write(folder, GOOD) / "model.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                content[place] = data.draw(st.integers(0, 255))
            case "cut":
                del content[place : place + data.draw(st.integers(1, 9))]
            case _:
                content[place:place] = data.draw(st.binary(max_size=9))
        if not content:
            content = bytearray(b"\0")
    (folder / "model.safetensors").write_bytes(content)
    try:
        file = SafetensorsFile(folder, "model.safetensors")
        for name in file.tensors:
            file.read(name)
    except CheckpointError:
        pass
