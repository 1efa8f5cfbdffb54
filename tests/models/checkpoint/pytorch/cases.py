"""Files of tensors put together by hand, and the fuzzer's target: pickles from instructions, archives from records."""

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from triolet.models.checkpoint.pytorch.file import LEGACY_MAGIC, PytorchFile
from triolet.models.errors import CheckpointError


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def whole(value: int) -> bytes:
    data = value.to_bytes(9, "little", signed=True)
    return b"\x8a\x09" + data


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def pickle(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def storage(key: str = "0", count: int = 6, kind: bytes = name("torch", "FloatStorage"), more: bytes = b"") -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + whole(count) + more + b"tQ"


def tensor(
    shape: tuple[int, ...] = (2, 3), strides: tuple[int, ...] = (3, 1), offset: int = 0, source: bytes | None = None
) -> bytes:
    """A call of `_rebuild_tensor_v2`."""
    sizes, steps = (b"(" + b"".join(map(whole, numbers)) + b"t" for numbers in (shape, strides))
    hooks = name("collections", "OrderedDict") + b")R"
    begin = name("torch._utils", "_rebuild_tensor_v2") + b"("
    return begin + (storage() if source is None else source) + whole(offset) + sizes + steps + b"\x89" + hooks + b"tR"


def tensors(**named: bytes) -> bytes:
    """A pickle with a dict of these."""
    return pickle(b"}(" + b"".join(text(key) + value for key, value in named.items()) + b"u")


GOOD = tensors(w=tensor())
DATA = struct.pack("<6f", *range(6))


def archive(
    data_pkl: bytes = GOOD, records: Mapping[str, bytes] | None = None, method: int = zipfile.ZIP_STORED
) -> bytes:
    """As torch.save names its records; `records` are those beside data.pkl."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as file:
        for key, data in {"data.pkl": data_pkl, "data/0": DATA, **(records or {})}.items():
            file.writestr(zipfile.ZipInfo(f"archive/{key}"), data, method)
    return held.getvalue()


def legacy(data_pkl: bytes = GOOD, keys: tuple[str, ...] = ("0",), data: bytes = struct.pack("<q", 6) + DATA) -> bytes:
    """The layout before torch 1.6."""
    magic = pickle(b"\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little"))
    system = pickle(b"}(" + text("protocol_version") + b"M\xe9\x03" + text("little_endian") + b"\x88u")
    listed = pickle(b"](" + b"".join(map(text, keys)) + b"e")
    return magic + pickle(b"M\xe9\x03") + system + data_pkl + listed + data


def read_all(folder: Path, content: bytes) -> bool:
    """Whether it is a file of tensors; all of them are read."""
    (folder / "model.pt").write_bytes(content)
    try:
        file = PytorchFile(folder, "model.pt")
    except CheckpointError:
        return False
    for key in file.tensors:
        try:
            file.read(key)
        except CheckpointError:  # a type that is no weight's
            continue
    return True


def read_input(folder: Path, data: bytes) -> bool:
    """A file, or (beginning with another byte than files do) a pickle in a sound archive."""
    return read_all(folder, data if data[:1] in (b"P", b"\x80") else archive(data[1:]))
