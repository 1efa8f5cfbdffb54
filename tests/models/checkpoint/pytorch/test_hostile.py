"""Hostile and damaged files of tensors end in an error that names them: nothing of them is run, and it takes little."""

import builtins
import os
import pickle as python_pickle
import random
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triolet.models.checkpoint.pytorch import machine
from triolet.models.checkpoint.pytorch.file import PytorchFile
from triolet.models.checkpoint.pytorch.machine import MAX_INSTRUCTIONS, MAX_PICKLE_BYTES, MAX_STACK
from triolet.models.errors import CheckpointError

from .cases import DATA, GOOD, archive, legacy, name, pickle, read_all, storage, tensor, tensors, text, whole

MOST_BYTES = 64 << 20
PART = 8  # of the bounds that the bombs reach: what they may take is the same part


def refused(folder: Path, content: bytes, message: str) -> None:
    (folder / "model.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        PytorchFile(folder, "model.pt")
    assert "model.pt" in str(caught.value)
    assert len(str(caught.value)) < 2000


class Runs:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("layout", [archive, legacy], ids=["archive", "before 1.6"])
def test_no_code_is_run(layout: Callable[[bytes], bytes], protocol: int, tmp_path: Path) -> None:
    """The same pickles run when Python reads them."""
    canary = tmp_path / "canary"
    calls = [
        Runs(subprocess.call, ["touch", str(canary)]),
        Runs(builtins.exec, f"import os; os.mkdir({str(canary)!r})"),
        Runs(Path.touch, canary),
        {"w": Runs(os.mkdir, str(canary))},
    ]
    for call in calls:
        hostile = python_pickle.dumps(call, protocol)
        (tmp_path / "model.pt").write_bytes(layout(hostile))
        with pytest.raises(CheckpointError):
            PytorchFile(tmp_path, "model.pt")
        assert not canary.exists()
        python_pickle.loads(hostile)
        assert canary.exists()
        canary.rmdir() if canary.is_dir() else canary.unlink()


def test_what_would_run_is_named_and_not_imported(tmp_path: Path) -> None:
    assert "antigravity" not in sys.modules
    for module, attribute in [("antigravity", "x"), ("posix", "system"), ("torch.hub", "load"), ("torch", "load")]:
        call = name(module, attribute) + b"(" + text("x") + b"tR"
        for body in (call, b"}" + text("w") + call + b"s", name("torch", "FloatStorage") + call):
            refused(tmp_path, archive(pickle(body)), f"'{module}.{attribute}': a name of Python")
    assert "antigravity" not in sys.modules
    by_stack = text("posix") + text("system") + b"\x93"
    refused(tmp_path, archive(pickle(by_stack)), "'posix.system': a name of Python")
    for code, opcode in [(b"i", "INST"), (b"o", "OBJ"), (b"\x81", "NEWOBJ"), (b"\x82", "EXT1"), (b"P", "PERSID")]:
        refused(tmp_path, archive(pickle(b"(" + code + b"posix\nsystem\n")), f"'{opcode}': instruction")
    for code in (b"0", b"2", b"I", b"S", b"C", b"\xff", b"\x8f", b"\x97"):  # also harmless ones that none of them has
        refused(tmp_path, archive(pickle(code)), "instruction: a file of tensors needs none of it")


VIEW = "is called with other|a tensor's offset|strides of a tensor|once|element"
PICKLES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated"),
    "only a version": (b"\x80\x02", "truncated"),
    "a version that is none": (b"\x80\x09.", "protocol = 9"),
    "an empty stack": (b"\x80\x02.", "stack is empty"),
    "below a mark": (pickle(b"}(."), "stack is empty"),
    "no mark": (pickle(b"t"), "no mark"),
    "values that are left": (pickle(b"}}"), "left over"),
    "a mark that is left": (pickle(b"}(}"), "left over|empty"),
    "no dict": (pickle(b"]"), "expected a dict of tensors"),
    "a number for a tensor": (tensors(w=b"K\1"), r"w = 'int': expected a tensor"),
    "a training checkpoint": (tensors(model=b"}", optimizer=b"}"), r"model = 'dict'.*state_dict\(\) alone"),
    "a number for a name": (pickle(b"}K\1K\1s"), "'int': as a key"),
    "a name twice": (tensors(w=tensor())[:-2] + text("w") + b"Nu.", "occurs twice|no mark"),
    "a memo that is empty": (pickle(b"h\0"), "memo is empty"),
    "a memo with holes": (pickle(b"}r\xff\xff\xff\xff"), "of the memo"),
    "a call of a number": (pickle(b"K\1)R"), "no name"),
    "arguments that are a list": (pickle(name("collections", "OrderedDict") + b"]R"), "no name"),
    "state of a list": (pickle(b"]}b"), "'BUILD'"),
    "a text of 4 GiB": (pickle(b"X\xff\xff\xff\xff"), "text of 4294967295 bytes"),
    "a text beyond the end": (b"\x80\x02X\0\1\0\0a", "truncated"),
    "a text that is none": (pickle(b"X\1\0\0\0\xff"), "not UTF-8"),
    "a name without end": (pickle(b"c" + b"a" * 9000), "name has no end"),
    "an integer of 255 bytes": (pickle(b"\x8a\xff" + b"\xff" * 255), "integer of 255 bytes"),
    "a storage of a text": (tensors(w=tensor(source=text("0"))), VIEW),
    "a persistent id that is none": (pickle(b"K\1Q"), "no storage"),
    "a storage of too few": (tensors(w=tensor(source=storage(count=5))), "once"),
    "a storage of more than its record": (tensors(w=tensor(source=storage(count=7))), "24: bytes, expected 28"),
    "a storage below nothing": (tensors(w=tensor(source=storage(count=-1))), "elements of a storage"),
    "a storage that is not there": (tensors(w=tensor(source=storage("9"))), "data/9 = None: this storage is missing"),
    "a storage of another folder": (tensors(w=tensor(source=storage("../0"))), "this storage is missing"),
    "a storage of two sizes": (
        tensors(v=tensor(), w=tensor(source=storage(count=6, kind=name("torch", "DoubleStorage")))), "24 and 48 bytes",
    ),
    "a storage's type that is none": (tensors(w=tensor(source=storage(kind=name("torch", "int8")))), "no type of"),
    "a tensor without a type": (
        tensors(w=tensor(source=storage(kind=name("torch.storage", "UntypedStorage"), count=24))), "without a type",
    ),
    "a view of a storage": (tensors(w=tensor(source=storage(more=b"K\1"))), "no storage as torch.save"),
    "other arguments": (tensors(w=name("torch._utils", "_rebuild_tensor_v2") + b")R"), VIEW),
    "a dict of arguments": (tensors(w=name("collections", "OrderedDict") + b"(]tR"), "other arguments"),
    "a type that is called": (tensors(w=name("torch", "float32") + b")R"), "other arguments"),
    "absurd sizes": (tensors(w=tensor((1 << 40, 1 << 40), (1, 1))), "once"),
    "sizes beyond integers": (tensors(w=tensor((1 << 60,), (1,))), "a tensor's offset"),
    "sizes beside nothing": (tensors(w=tensor((0, 1 << 52, 1 << 52), (1, 1, 1))), "once"),
    "a negative size": (tensors(w=tensor((-1,), (1,))), "a tensor's offset"),
    "a negative stride": (tensors(w=tensor((6,), (-1,))), "a tensor's offset"),
    "a negative offset": (tensors(w=tensor(offset=-1)), "a tensor's offset"),
    "an offset beyond the storage": (tensors(w=tensor(offset=1)), "element 6 of a storage with 6"),
    "strides beyond the storage": (tensors(w=tensor((2, 3), (4, 1))), "element 6 of"),
    "one element many times": (tensors(w=tensor((7,), (0,))), "once"),
    "too few strides": (tensors(w=tensor((2, 3), (1,))), "strides of a tensor"),
    "too many dimensions": (tensors(w=tensor((1,) * 9, (1,) * 9)), "a tensor's offset"),
    "truth for a size": (tensors(w=tensor().replace(whole(2), b"\x88")), "a tensor's offset"),
    "metadata": (tensors(w=tensor()[:-2] + b"}" + text("neg") + b"\x88stR"), "metadata"),
}  # fmt: skip


@pytest.mark.parametrize("case", PICKLES)
def test_pickles(case: str, tmp_path: Path) -> None:
    data, message = PICKLES[case]
    refused(tmp_path, archive(data), message)


def nested(count: int) -> bytes:
    """A tuple in a tuple in a tuple …, which must be neither printed nor compared."""
    return b")" + b"\x85" * count


@pytest.mark.parametrize(
    "body",
    [
        nested(100_000),
        b"}" + text("w") + nested(100_000) + b"s",
        tensors(w=tensor())[2:-1] + nested(100_000) + b"b",
        nested(100_000) + b"Q",
        name("collections", "OrderedDict") + nested(100_000) + b"R",
        tensor().replace(whole(2), nested(100_000)),
        tensor()[:-2] + nested(100_000) + b"tR",
        b"]q\0h\0a",  # a list in itself
        b"}q\0" + text("w") + b"h\0s",
        tensor()[:-2] + b"]q\0h\0atR",
    ],
)
def test_values_without_end(body: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(archive(pickle(body)))
    with pytest.raises(CheckpointError):
        PytorchFile(tmp_path, "model.pt")


def filled(part: bytes, begin: bytes = b"") -> bytes:
    return pickle(begin + part * ((MAX_PICKLE_BYTES // PART + 1000) // len(part)))


BOMBS: dict[str, tuple[bytes, str]] = {
    "lists on the stack": (filled(b"]"), f"more than {MAX_STACK} values"),
    "marks": (filled(b"("), f"more than {MAX_STACK} values"),
    "lists in a list": (filled(b"(" + b"]" * 8000 + b"e", b"]"), "instructions"),
    "dicts in a list": (filled(b"(" + b"}K\1K\1s".replace(b"K\1K\1", text("a") + b"N") * 8000 + b"e", b"]"), "instr"),
    "texts of wide characters": (
        filled(b"(" + text("a" * 28 + "\U0001f600") * 8000 + b"e", b"]"),
        "truncated|instr|expected a dict",
    ),
    "texts": (filled(b"(" + text("ab") * 8000 + b"e", b"]"), "instructions"),
    "tuples that grow": (filled(b"\x85q\0h\0\x86", b")"), "instructions|more than"),
    "a memo": (filled(b"\x94", b"]"), "instructions"),
    "a memo by its numbers": (filled(b"r\1\0\0\0h\1a", b"]q\0h\0q\1"), "instructions"),
    "the same again": (filled(b"(" + b"h\0" * 8000 + b"e", b"]q\0"), "instructions"),
    "storages": (filled(storage(), b""), "more than|instructions"),
    "nothing that stays": (filled(b"N}b".replace(b"N", b"}"), b"}"), "instructions|more than"),
    "versions": (filled(b"\x80\x02"), "instructions"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_memory_is_bounded(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows with bytes and instructions, so a part of both shows it; a whole of them takes seconds of each case."""
    for bound in ("MAX_PICKLE_BYTES", "MAX_INSTRUCTIONS"):
        monkeypatch.setattr(machine, bound, getattr(machine, bound) // PART)
    data, message = BOMBS[case]
    content = archive(data)
    (tmp_path / "model.pt").write_bytes(content)
    del content
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message):
            PytorchFile(tmp_path, "model.pt")
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES // PART
    finally:
        tracemalloc.stop()


def test_instructions_are_bounded_and_a_large_file_is_below_the_bound(tmp_path: Path) -> None:
    """15,000 tensors in one file: mixtures of experts have as many in ten."""
    names = (text(f"model.layers.{index}.mlp.experts.down_proj.weight") + tensor() + b"s" for index in range(15_000))
    assert read_all(tmp_path, archive(pickle(b"}" + b"".join(names))))
    refused(tmp_path, archive(pickle(b"N" + b"N" * MAX_INSTRUCTIONS)), "stack|instructions")


def changed(content: bytes, place: int, data: bytes) -> bytes:
    return content[:place] + data + content[place + len(data) :]


SOUND = archive()
DIRECTORY = SOUND.index(b"PK\1\2")
SECOND = SOUND.index(b"PK\3\4", 4)
ARCHIVES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "has 0 bytes"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
    "a page": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "begins with"),
    "only a beginning": (SOUND[:100], "truncated"),
    "the last byte less": (SOUND[:-1], "truncated|directory"),
    "a byte more": (SOUND + b"\0", "goes on behind"),
    "compressed": (archive(method=zipfile.ZIP_DEFLATED), "record is compressed"),
    "a bomb": (archive(records={"data/1": b"\0" * 10**7}, method=zipfile.ZIP_DEFLATED), "record is compressed"),
    "encrypted": (changed(SOUND, DIRECTORY + 8, b"\1"), "encrypted"),
    "two sizes": (changed(SOUND, DIRECTORY + 20, b"\1\0\0\0"), "one size"),
    "sizes that are missing": (changed(SOUND, DIRECTORY + 20, b"\xff" * 8), "in 64 bits is missing"),
    "a size beyond the file": (changed(SOUND, DIRECTORY + 20, b"\xff\xff\xff\x7f" * 2), "into the next record"),
    "a record in a record": (changed(SOUND, DIRECTORY + 42, struct.pack("<I", 4)), "no record at this place"),
    "one record for two names": (
        SOUND.replace(b"archive/data/0", b"archive/data/1", 1), "another record is at this place",
    ),
    "no header": (changed(SOUND, SECOND, b"PK\0\0"), "no record at this place"),
    "a directory that is none": (changed(SOUND, DIRECTORY, b"PK\0\0"), "directory of the archive is damaged"),
    "more entries than there are": (changed(SOUND, len(SOUND) - 12, b"\3\0"), "directory of the archive is damaged"),
    "fewer entries": (changed(SOUND, len(SOUND) - 12, b"\1\0"), "bytes, of which its entries take"),
    "entries without number": (
        changed(SOUND, len(SOUND) - 12, b"\xff\xff\xff\xff\xff\x7f"), "directory|too many",
    ),
    "no pickle": (SOUND.replace(b"data.pkl", b"data.pkx"), "without one NAME/data.pkl"),
    "two pickles": (archive(records={"../b/data.pkl": GOOD}).replace(b"archive/../b", b"archivf"), "damaged|without"),
    "a program": (archive(records={"constants.pkl": b""}), "TorchScript"),
    "other byte order": (archive(records={"byteorder": b"big"}), "byteorder = b'big'"),
    "a short storage": (archive(records={"data/0": DATA[:-1]}), "23: bytes, expected 24"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", ARCHIVES)
def test_archives(case: str, tmp_path: Path) -> None:
    assert read_all(tmp_path, SOUND)
    data, message = ARCHIVES[case]
    refused(tmp_path, data, message)


OLD: dict[str, tuple[bytes, str]] = {
    "another pickle": (pickle(b"K\1") + bytes(20), "is a pickle, but not of torch.save"),
    "a number less": (legacy(data=struct.pack("<q", 5) + DATA), "elements, and its data say otherwise"),
    "a byte less": (legacy()[:-1], "beyond the file: truncated"),
    "a byte more": (legacy() + b"\0", "not those that its tensors need"),
    "a storage more": (legacy(keys=("0", "1")), "no tensor has it"),
    "a storage twice": (legacy(keys=("0", "0")), "occurs twice"),
    "a storage less": (legacy(keys=(), data=b""), "not those that its tensors need"),
    "keys that are numbers": (legacy().replace(b"](" + text("0") + b"e.", b"](K\0e."), "list of storages"),
    "another version": (legacy().replace(b"\x80\x02M\xe9\x03.", b"\x80\x02M\xea\x03."), "expected 1001"),
    "big-endian": (legacy().replace(b"\x88u", b"\x89u"), "only little-endian files"),
}


@pytest.mark.parametrize("case", OLD)
def test_files_before_archives(case: str, tmp_path: Path) -> None:
    assert read_all(tmp_path, legacy())
    data, message = OLD[case]
    refused(tmp_path, data, message)


@pytest.mark.parametrize("sound", [archive(), legacy(), archive(tensors(a=tensor(), b=tensor((3, 2), (1, 3))))])
def test_mutations_are_read_or_refused(sound: bytes, tmp_path: Path) -> None:
    draw, read = random.Random(5), 0
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.2:
            del data[draw.randrange(len(data)) :]
        read += read_all(tmp_path, bytes(data))
    assert 0 < read < 300
