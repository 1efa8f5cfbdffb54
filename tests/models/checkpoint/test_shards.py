"""A part of a model that is missing, cut short or damaged is named, in every format, when its headers are read.

Opening is the first thing that a load does: nothing is planned, mapped for good or allocated before it.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from triolet.models.checkpoint.gguf.parts import Gguf
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.weight_files import open_weights
from triolet.models.errors import CheckpointError

from .gguf.written import plain, write_gguf
from .test_checkpoint import make_tensors, write

SECOND = {
    "safetensors": "model-00002-of-00002.safetensors",
    "bin": "pytorch_model-00002-of-00002.bin",
    "gguf": "m-00002-of-00002.gguf",
}


def in_parts(folder: Path, form: str) -> Path:
    """A model of two files; what is opened."""
    write(folder)
    tensors = make_tensors()
    names = sorted(tensors)
    halves = [{name: tensors[name] for name in names[part::2]} for part in (0, 1)]
    files = [SECOND[form].replace("00002-of", f"0000{part}-of") for part in (1, 2)]
    (folder / "model.safetensors").unlink()
    for index, (file, half) in enumerate(zip(files, halves, strict=True)):
        if form == "gguf":
            more = {"general.architecture": "llama"} if index == 0 else {}
            split = {"split.no": index, "split.count": 2, "split.tensors.count": len(names)}
            write_gguf(folder / file, {**more, **split}, {name: plain(array) for name, array in half.items()})
        elif form == "bin":
            import torch

            torch.save({name: torch.from_numpy(array) for name, array in half.items()}, folder / file)
        else:
            safetensors.numpy.save_file(half, folder / file)
    index_file = {"safetensors": "model.safetensors.index.json", "bin": "pytorch_model.bin.index.json"}.get(form)
    if index_file is not None:
        weight_map = {name: file for file, half in zip(files, halves, strict=True) for name in half}
        (folder / index_file).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder
    return folder / files[0]


def open_parts(place: Path) -> None:
    if place.suffix == ".gguf":
        Gguf(place)
    else:
        open_checkpoint(place)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def halved(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def beginning(file: Path) -> None:
    file.write_bytes(b"\0" * 64 + file.read_bytes()[64:])


def zeros(file: Path) -> None:
    """As a program leaves it that makes room before it fetches."""
    file.write_bytes(bytes(file.stat().st_size))


def pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def page(file: Path) -> None:
    file.write_text("<!DOCTYPE html><html><body>Sign in</body></html>")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def first_again(file: Path) -> None:
    file.write_bytes((file.parent / file.name.replace("00002-of", "00001-of")).read_bytes())


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "missing"),
    (cut, "truncated|damaged"),
    (halved, "truncated|damaged"),
    (beginning, "damaged|not a GGUF file"),
    (zeros, "damaged|not a GGUF file|overlap|truncated"),
    (pointer, "Git LFS"),
    (page, "damaged|not a GGUF file"),
    (empty, "truncated|damaged"),
    (first_again, "it is not|the name and the content disagree|does not place there"),
]


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGES], ids=lambda damage: str(damage.__name__))
@pytest.mark.parametrize("form", SECOND)
def test_the_damaged_part_is_named(form: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    place = in_parts(tmp_path, form)
    if form == "gguf":
        assert len(Gguf(place).parts) == 2
    else:
        assert len(open_checkpoint(place).weight_files) == 2
    damage(tmp_path / SECOND[form])
    with pytest.raises(CheckpointError, match=dict(DAMAGES)[damage]) as caught:
        open_parts(place)
    assert SECOND[form] in str(caught.value)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_parts_without_their_index_say_what_is_missing(form: str, tmp_path: Path) -> None:
    folder = in_parts(tmp_path, form)
    next(folder.glob("*.index.json")).unlink()
    with pytest.raises(CheckpointError, match=r"-00001-of-00002\..*model\.safetensors\.index\.json or"):
        open_weights(folder)


def test_a_file_with_another_name_is_taken_where_it_is_the_only_one(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "gptq_model-4bit-128g.safetensors")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensor_names == make_tensors().keys()
    safetensors.numpy.save_file({"a": np.zeros(1, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*missing"):
        open_checkpoint(tmp_path)
