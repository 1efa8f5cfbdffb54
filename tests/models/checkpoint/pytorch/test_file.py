"""Files of torch.save: every tensor is torch's own, whatever its view, its type, and the layout of the file."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models.checkpoint.checkpoint import CheckpointFolder
from triolet.models.checkpoint.pytorch.file import PytorchFile
from triolet.models.errors import CheckpointError

from ..test_checkpoint import load, make_tensors, write
from .cases import archive, tensor, tensors

Array = npt.NDArray[Any]


def views() -> Any:  # Any: torch's tensors, where torch is imported
    """Whole tensors, and views of all kinds; of every type that is read."""
    import torch

    torch.manual_seed(0)
    matrix, cube = torch.randn(10, 8), torch.randn(3, 4, 5)
    module = torch.nn.Linear(4, 3)
    held: Any = module.state_dict()  # with _metadata, as a module writes it
    held.update(
        shared=matrix,
        shared_too=matrix,
        transposed=matrix.t(),
        rows=matrix[2:5],
        columns=matrix[:, 3:5],
        every_second=matrix[1::2, ::3],
        turned=cube.permute(2, 0, 1),
        parameter=torch.nn.Parameter(torch.randn(3).bfloat16()),
        half=torch.randn(2, 2).half(),
        number=torch.tensor(3),
        empty=torch.zeros(0, 4),
        one_column=matrix[:, :1],
        int8=torch.arange(-3, 3, dtype=torch.int8),
        uint8=torch.arange(6, dtype=torch.uint8),
        int32=torch.arange(6, dtype=torch.int32).reshape(2, 3).t(),
        truth=torch.tensor([True, False]),
    )
    return held


def numpy_of(tensor: Any) -> Array:
    import torch

    same_size = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    held: Array = tensor.detach().view(same_size.get(tensor.dtype, tensor.dtype)).numpy()
    return held


def check(folder: Path, expected: Any) -> None:
    file = PytorchFile(folder, "model.pt")
    assert list(file.tensors) == list(expected)
    for key, value in expected.items():
        found = file.raw(key)
        assert (found.dtype, found.shape) == (numpy_of(value).dtype, value.shape), key
        np.testing.assert_array_equal(found, numpy_of(value), key)
        assert found.flags.aligned
        assert found.flags.c_contiguous
        assert found.base is None or not found.flags.writeable
    file.release_pages()
    np.testing.assert_array_equal(file.raw("rows"), numpy_of(expected["rows"]))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("archived", [True, False], ids=["archive", "before 1.6"])
def test_what_torch_saves(archived: bool, protocol: int, tmp_path: Path) -> None:
    import torch

    expected = views()
    if archived:
        expected["float8"] = torch.arange(6.0).to(torch.float8_e4m3fn)  # the old layout has no such type
    torch.save(expected, tmp_path / "model.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=archived)
    check(tmp_path, expected)


def test_an_archive_that_another_program_wrote_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is aligned in it, and its sizes are in 64 bits, as in archives of more than 4 GiB."""
    import torch

    expected, held = views(), io.BytesIO()
    torch.save(expected, held)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    with zipfile.ZipFile(held) as old, zipfile.ZipFile(tmp_path / "model.pt", "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name))
    data = (tmp_path / "model.pt").read_bytes()
    assert b"PK\6\6" in data
    check(tmp_path, expected)


def test_strides_count(tmp_path: Path) -> None:
    """The same six numbers as rows and as columns: a reader that ignored strides would give the first for both."""
    rows, columns, backwards = tensor(), tensor((2, 3), (1, 2)), tensor((3,), (2,), 1)
    (tmp_path / "model.pt").write_bytes(archive(tensors(rows=rows, columns=columns, odd=backwards)))
    file = PytorchFile(tmp_path, "model.pt")
    assert file.read("rows").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.read("columns").tolist() == [[0, 2, 4], [1, 3, 5]]
    assert file.read("odd").tolist() == [1, 3, 5]
    assert [info.copied_bytes for info in file.tensors.values()] == [0, 24, 12]


def save(folder: Path, parts: dict[str, dict[str, Array]]) -> None:
    """The arrays as files of torch.save, with an index if they are several."""
    import torch

    (folder / "model.safetensors").unlink(missing_ok=True)
    for name, arrays in parts.items():
        torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, folder / name)
    if len(parts) > 1:
        weight_map = {key: name for name, arrays in parts.items() for key in arrays}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def halves() -> dict[str, dict[str, Array]]:
    arrays = make_tensors()
    return {
        f"pytorch_model-0000{part + 1}-of-00002.bin": {key: arrays[key] for key in sorted(arrays)[part::2]}
        for part in (0, 1)
    }


@pytest.mark.parametrize("parts", [{"pytorch_model.bin": make_tensors()}, {"model.pt": make_tensors()}, halves()])
def test_a_folder_with_them_is_the_same_checkpoint(parts: dict[str, dict[str, Array]], tmp_path: Path) -> None:
    expected = load(write(tmp_path))
    save(tmp_path, parts)
    found = load(tmp_path)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)
    checkpoint = CheckpointFolder(tmp_path)
    assert [path.name for path in checkpoint.weight_files] == sorted(parts)
    assert (checkpoint.dtype, checkpoint.widened_bytes) == ("float32", 0)


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    expected = load(write(tmp_path))
    other = {key: array + 1 for key, array in make_tensors().items()}
    weights = (tmp_path / "model.safetensors").read_bytes()
    save(tmp_path, {"pytorch_model.bin": other})
    assert not np.array_equal(load(tmp_path)["down"], expected["down"])
    (tmp_path / "model.safetensors").write_bytes(weights)
    np.testing.assert_array_equal(load(tmp_path)["down"], expected["down"])


def test_types_and_views_count_in_the_memory_that_reading_takes(tmp_path: Path) -> None:
    import torch

    write(tmp_path)
    weights = {key: torch.from_numpy(array).half() for key, array in make_tensors().items()}
    weights["lm_head.weight"] = torch.from_numpy(make_tensors()["lm_head.weight"]).bfloat16().t().contiguous().t()
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    checkpoint = CheckpointFolder(tmp_path)
    halves = sum(array.size for key, array in make_tensors().items() if key != "lm_head.weight")
    assert checkpoint.widened_bytes == 4 * halves + 2 * 20 * 8
    head = checkpoint.read_tensor("lm_head.weight")
    assert isinstance(head, np.ndarray)
    assert head.dtype == np.uint16
    np.testing.assert_array_equal(head, numpy_of(weights["lm_head.weight"]))


def test_a_type_that_is_no_weight_is_refused_when_it_is_read(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.zeros(2, dtype=torch.float64)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"model\.pt: w = 'F64': expected a weight of type F32, BF16 or F16"):
        PytorchFile(tmp_path, "model.pt").read("w")
