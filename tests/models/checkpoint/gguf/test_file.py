"""The GGUF reader on files of our own making: what is right is read, every lie is a CheckpointError that names it."""

import math
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.models.checkpoint.gguf.metadata import ARRAY_COST, MAX_LENGTH, MAX_STRINGS
from triolet.models.checkpoint.gguf.parts import Gguf, part_names
from triolet.models.checkpoint.gguf.types import BLOCKS
from triolet.models.errors import CheckpointError

from .written import Tensor, Typed, gguf_bytes, plain, text, value, write_gguf

VALUES: dict[str, tuple[Any, Any]] = {
    "u8": (Typed("u8", 255), 255),
    "i8": (Typed("i8", -128), -128),
    "u16": (Typed("u16", 65535), 65535),
    "i16": (Typed("i16", -32768), -32768),
    "u32": (Typed("u32", 2**32 - 1), 2**32 - 1),
    "i32": (Typed("i32", -(2**31)), -(2**31)),
    "f32": (Typed("f32", 0.5), 0.5),
    "bool": (True, True),
    "string": ("Grüße 🙂", "Grüße 🙂"),
    "empty string": ("", ""),
    "u64": (Typed("u64", 2**64 - 1), 2**64 - 1),
    "i64": (Typed("i64", -(2**63)), -(2**63)),
    "f64": (Typed("f64", 1e300), 1e300),
    "strings": (["a", "", "▁b"], ["a", "", "▁b"]),
    "no strings": ([], []),
    "numbers": (Typed("f32", [1.5, -2.0]), [1.5, -2.0]),
    "flags": (Typed("bool", [1, 0]), [True, False]),
    "nested": ([["a", "b"], ["c"]], [["a", "b"], ["c"]]),
}
TENSORS = {
    "a": plain(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": Tensor("Q8_0", (3, 64), bytes(range(204))),
    "c": plain(np.ones(5, np.uint16)),
}


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_type_of_metadata(tmp_path: Path, version: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {key: given for key, (given, _) in VALUES.items()}, version=version)
    metadata = Gguf(path).metadata
    assert list(metadata) == list(VALUES)
    assert dict(metadata) == {key: expected for key, (_, expected) in VALUES.items()}
    assert type(metadata["bool"]) is bool
    assert len(metadata) == len(VALUES)
    assert metadata.get("other") is None


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_reads_tensors(tmp_path: Path, alignment: int) -> None:
    metadata = {"general.alignment": alignment}
    file = Gguf(write_gguf(tmp_path / "m.gguf", metadata, TENSORS, alignment=alignment))
    for name, tensor in TENSORS.items():
        assert (file.tensor(name).type, file.tensor(name).shape) == (tensor.type, tensor.shape)
        assert bytes(file.read(name)) == tensor.data
    file.release_pages()
    assert bytes(file.read("a")) == TENSORS["a"].data


def test_agrees_with_the_formats_own_sizes() -> None:
    """Block sizes against `ggml-common.h`: a super-block of 256 and the bits per weight that the types are known by."""
    bits = {name: size * 8 / elements for name, (elements, size) in BLOCKS.items()}
    assert [bits[f"Q{n}_K"] for n in range(2, 7)] == [2.625, 3.4375, 4.5, 5.5, 6.5625]
    assert [bits[name] for name in ("Q8_0", "Q5_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4")] == [
        8.5,
        6,
        4.5,
        4.5,
        4.25,
        4.25,
    ]


def header(*pairs: bytes, tensors: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)


def tensor(name: bytes = b"t", sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


GOOD = gguf_bytes({"general.architecture": "llama", "tokens": ["a", "b"]}, TENSORS)
DATA = bytes(4096)
LIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes"),
    "another format": (b"GGML" + GOOD[4:], "not a GGUF file"),
    "version 1": (header(version=1), "versions 2 and 3"),
    "version 4": (header(version=4), "versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2^63 tensors": (gguf_bytes({}, counts=(2**63, 0)), "number of tensors"),
    "2^63 pairs": (gguf_bytes({}, counts=(0, 2**63)), "number of metadata pairs"),
    "more pairs than there are": (header(text("a") + value(1))[:-4], "truncated"),
    "more tensors than there are": (gguf_bytes({"a": 1}, counts=(7, 1)), "dimensions"),
    "a key of 2^62 bytes": (header(struct.pack("<Q", 2**62)), "length of key 0"),
    "a key that is not UTF-8": (header(text(b"\xff") + value(1)), "not UTF-8"),
    "a key twice": (header(text("a") + value(1), text("a") + value(2)), "occurs twice"),
    "an unknown type": (header(text("a") + struct.pack("<I", 13)), "unknown type of a metadata value"),
    "a string of 2^64 - 1 bytes": (header(text("a") + struct.pack("<IQ", 8, 2**64 - 1)), "truncated"),
    "an array of 2^60 bytes": (header(text("a") + struct.pack("<IIQ", 9, 0, 2**60)), "at most"),
    "an array longer than the file": (header(text("a") + struct.pack("<IIQ", 9, 12, MAX_LENGTH)), "truncated"),
    "strings beyond the end": (header(text("a") + struct.pack("<IIQ", 9, 8, 1000) + bytes(80)), "truncated"),
    "a string in an array beyond the end": (header(text("a") + struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1)), "truncated"),
    "an array of an unknown type": (header(text("a") + struct.pack("<IIQ", 9, 77, 1) + DATA), "unknown type"),
    "arrays in arrays without end": (
        header(text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50),
        "nested",
    ),
    "an alignment of 0": (gguf_bytes({"general.alignment": 0}), "power of two"),
    "an alignment of 24": (gguf_bytes({"general.alignment": 24}), "power of two"),
    "an alignment of 2^31": (gguf_bytes({"general.alignment": 2**31}), "power of two"),
    "an alignment in words": (gguf_bytes({"general.alignment": "32"}), "power of two"),
    "truncated data": (GOOD[:-32], "truncated"),
    "a truncated header": (GOOD[:90], "truncated"),
    "overlap": (header(tensors=(tensor(), tensor(b"u", offset=64))) + DATA, "overlap"),
    "one place twice": (header(tensors=(tensor(), tensor(b"u"))) + DATA, "overlap"),
    "a name twice": (header(tensors=(tensor(), tensor(offset=128))) + DATA, "a name occurs twice"),
    "beyond the end": (header(tensors=(tensor(offset=2**40),)) + DATA, "truncated"),
    "an offset of 2^64 - 32": (header(tensors=(tensor(offset=2**64 - 32),)) + DATA, "truncated"),
    "an offset between multiples": (header(tensors=(tensor(offset=4),)) + DATA, "alignment"),
    "no dimensions": (header(tensors=(tensor(sizes=()),)) + DATA, "dimensions"),
    "five dimensions": (header(tensors=(tensor(sizes=(1,) * 5),)) + DATA, "dimensions"),
    "2^32 - 1 dimensions": (header(tensors=(text("t") + struct.pack("<I", 2**32 - 1),)) + DATA, "dimensions"),
    "a dimension of 0": (header(tensors=(tensor(sizes=(32, 0)),)) + DATA, "a dimension"),
    "a dimension of 2^63": (header(tensors=(tensor(sizes=(32, 2**63)),)) + DATA, "a dimension"),
    "a product of 2^80": (header(tensors=(tensor(sizes=(2**20,) * 4),)) + DATA, "truncated"),
    "a type that was removed": (header(tensors=(tensor(kind=4),)) + DATA, "unknown type of tensor"),
    "a type of the future": (header(tensors=(tensor(kind=99),)) + DATA, "unknown type of tensor"),
    "half a block": (header(tensors=(tensor(sizes=(48,), kind=8),)) + DATA, "multiples of 32"),
    "a long name": (header(tensors=(tensor(b"t" * 200),)) + DATA, "name of tensor 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_named(tmp_path: Path, lie: str) -> None:
    data, message = LIES[lie]
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        Gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("kind", "data", "message"), [(8, text(b"\xff\xfe"), "UTF-8"), (7, b"\x02", "truth value")], ids=["text", "flag"]
)
def test_a_value_is_checked_when_it_is_read(tmp_path: Path, kind: int, data: bytes, message: str) -> None:
    metadata = Gguf(write_gguf(tmp_path / "m.gguf", {"general.name": Typed("raw", (kind, data)), "a": 1})).metadata
    assert metadata["a"] == 1
    with pytest.raises(CheckpointError, match=message):
        metadata["general.name"]


def _empty_strings(path: Path) -> None:
    """As many strings as are walked over, and one more array of them."""
    arrays = MAX_STRINGS // MAX_LENGTH + 1
    pairs = [text(f"k{n}") + struct.pack("<IIQ", 9, 8, MAX_LENGTH) + bytes(8 * MAX_LENGTH) for n in range(arrays)]
    path.write_bytes(header(*pairs))


def _empty_arrays(path: Path) -> None:
    length = MAX_STRINGS // ARRAY_COST // 4
    inner = struct.pack("<IQ", 9, 0) * length
    path.write_bytes(header(*[text(f"k{n}") + struct.pack("<IIQ", 9, 9, length) + inner for n in range(5)]))


def _large_claims(path: Path) -> None:
    """A sparse file of 1 TiB that says it is metadata."""
    with path.open("wb") as file:
        file.write(header(text("a") + struct.pack("<IQ", 8, 2**40 - 100)))
        file.truncate(2**40)


@pytest.mark.parametrize("write", [_empty_strings, _empty_arrays, _large_claims])
def test_floods_end_early(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """The bounds are counts of work, so this needs no clock."""
    write(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="more than"):
        Gguf(tmp_path / "m.gguf")


def test_strings_stay_in_the_file_until_they_are_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"tokens": ["token"] * 20_000, "n": 1})
    tracemalloc.start()
    try:
        metadata = Gguf(path).metadata
        assert metadata["n"] == 1
        assert tracemalloc.get_traced_memory()[1] < 50_000
        assert len(metadata["tokens"]) == 20_000  # type: ignore[arg-type] # a value may be a number
        assert tracemalloc.get_traced_memory()[1] > 50_000
    finally:
        tracemalloc.stop()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 40)
)
def test_no_change_of_bytes_is_anything_but_an_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(GOOD[: len(GOOD) - cut * 8])
    for place, byte in changes:
        if place < len(data):
            data[place] = byte
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    path.write_bytes(data)
    try:
        file = Gguf(path)
        for name, info in file.tensors.items():
            elements, size = BLOCKS[info.type]
            assert len(file.read(name)) == math.prod(info.shape) // elements * size
        dict(file.metadata)
    except CheckpointError:
        pass


def parts(
    folder: Path, *, count: int = 3, numbers: tuple[int, ...] = (0, 1, 2), total: int = 3, names: str = "abc"
) -> Path:
    """A split model with one tensor in each part."""
    for index, (number, name) in enumerate(zip(numbers, names, strict=True)):
        said = {
            "split.no": Typed("u16", number),
            "split.count": Typed("u16", count),
            "split.tensors.count": Typed("i32", total),
        }
        more = {"general.architecture": "llama"} if index == 0 else {}
        write_gguf(folder / f"m-{index + 1:05}-of-00003.gguf", {**more, **said}, {name: TENSORS["a"]})
    return folder / "m-00001-of-00003.gguf"


def test_reads_a_split_model_by_any_of_its_parts(tmp_path: Path) -> None:
    parts(tmp_path)
    for number in (1, 3):
        file = Gguf(tmp_path / f"m-0000{number}-of-00003.gguf")
        assert set(file.tensors) == {"a", "b", "c"}
        assert file.metadata["general.architecture"] == "llama"
        assert bytes(file.read("c")) == TENSORS["a"].data


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 4}, "name and the content disagree"),
        ({"numbers": (0, 2, 1)}, "name and the content disagree"),
        ({"total": 4}, "the parts hold 3 tensors"),
        ({"names": "aba"}, "occurs in two"),
    ],
    ids=str,
)
def test_parts_must_belong_together(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Gguf(parts(tmp_path, **wrong))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = parts(tmp_path)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(CheckpointError, match="m-00002-of-00003"):
        Gguf(first)


def test_a_part_under_a_plain_name_is_refused(tmp_path: Path) -> None:
    parts(tmp_path).rename(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="name and the content disagree"):
        Gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-09999.gguf"])
def test_impossible_parts_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="a part has a number"):
        part_names(name)


def test_a_part_in_a_hub_cache_is_found_by_its_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    parts(tmp_path)
    for number, path in enumerate(sorted(tmp_path.glob("*.gguf"))):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert set(Gguf(snapshot / "m-00001-of-00003.gguf").tensors) == {"a", "b", "c"}


def test_a_link_from_elsewhere_leads_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    path = write_gguf(tmp_path / "m.gguf", {"a": 1})
    (tmp_path / "links" / "mine.gguf").symlink_to(path)
    assert Gguf(tmp_path / "links" / "mine.gguf").metadata["a"] == 1


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        Gguf(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        Gguf(tmp_path)
