"""Models of the hub by their headers alone."""

import io
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.errors import LoadError
from triolet.models.hub import archive_headers
from triolet.models.hub.fetch import Hubs, fetch
from triolet.models.hub.headers import fetch_headers
from triolet.models.hub.names import HubName
from triolet.models.hub.order import Wanted

from .hub_server import Hub, Repo, running_hub

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
WANTED = Wanted(HubName("org/small"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Hub]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with running_hub() as hub:
        hub.repos["org/small"] = Repo({file.name: file.read_bytes() for file in DEMO.iterdir()})
        yield hub


def test_headers_are_enough_for_the_loader_and_few_bytes_come(hub: Hub, tmp_path: Path) -> None:
    place, folder = Hubs(endpoint=hub.url, cache=str(tmp_path / "hub")), tmp_path / "headers"
    found, whole = open_checkpoint(fetch_headers(WANTED, place, folder)), open_checkpoint(DEMO)
    assert found.spec == whole.spec
    assert {name: found.tensor_shape(name) for name in found.tensor_names} == {
        name: whole.tensor_shape(name) for name in whole.tensor_names
    }
    assert hub.gets["model.safetensors"] == 1
    assert hub.gets["tokenizer.json"] == 0
    weights = folder / "model.safetensors"
    assert weights.stat().st_size == (DEMO / "model.safetensors").stat().st_size
    assert weights.stat().st_blocks * 512 < 1 << 20  # the rest is a hole


def test_a_long_header_comes_in_two_parts_and_a_damaged_one_is_refused(hub: Hub, tmp_path: Path) -> None:
    place, files = Hubs(endpoint=hub.url, cache=str(tmp_path / "hub")), hub.repos["org/small"].files
    whole = files["model.safetensors"]
    end = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:end] + b" " * 200_000
    files["model.safetensors"] = len(header).to_bytes(8, "little") + header + whole[end:]
    hub.repos["org/small"] = Repo(files)
    assert open_checkpoint(fetch_headers(WANTED, place, tmp_path / "a")).spec == open_checkpoint(DEMO).spec
    assert hub.gets["model.safetensors"] == 2
    files["model.safetensors"] = (1 << 60).to_bytes(8, "little") + whole[8:]
    hub.repos["org/small"] = Repo(files)
    with pytest.raises(LoadError, match="bytes of header"):
        open_checkpoint(fetch_headers(WANTED, place, tmp_path / "b"))


def test_a_cached_model_is_read_where_it_is(hub: Hub, tmp_path: Path) -> None:
    place = Hubs(endpoint=hub.url, cache=str(tmp_path / "hub"))
    folder = fetch(WANTED, place)
    assert fetch_headers(WANTED, place, tmp_path / "headers") == folder
    assert not (tmp_path / "headers").exists()


def in_torch(files: dict[str, bytes], legacy: bool = False) -> dict[str, bytes]:
    """The same model in torch's format, in two files."""
    import torch
    from safetensors.torch import load

    weights = list(load(files["model.safetensors"]).items())
    found = {name: data for name, data in files.items() if name != "model.safetensors"}
    weight_map: dict[str, str] = {}
    for part in (0, 1):
        name, held = f"pytorch_model-0000{part + 1}-of-00002.bin", io.BytesIO()
        torch.save(dict(weights[part::2]), held, _use_new_zipfile_serialization=not legacy)
        found[name] = held.getvalue()
        weight_map |= {key: name for key, _ in weights[part::2]}
    return found | {"pytorch_model.bin.index.json": json.dumps({"weight_map": weight_map}).encode()}


def test_of_pytorch_files_the_two_ends_are_enough(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the pickle and the directory are longer than what is fetched at first."""
    place = Hubs(endpoint=hub.url, cache=str(tmp_path / "hub"))
    hub.repos["org/small"] = Repo(in_torch(hub.repos["org/small"].files))
    whole = open_checkpoint(DEMO)
    for index, (first, last) in enumerate([(archive_headers.FIRST, archive_headers.LAST), (500, 700)]):
        monkeypatch.setattr(archive_headers, "FIRST", first)
        monkeypatch.setattr(archive_headers, "LAST", last)
        folder = tmp_path / f"headers {index}"
        found = open_checkpoint(fetch_headers(WANTED, place, folder))
        assert (found.spec, found.dtype, found.widened_bytes) == (whole.spec, whole.dtype, whole.widened_bytes)
        assert {name: found.tensor_shape(name) for name in found.tensor_names} == {
            name: whole.tensor_shape(name) for name in whole.tensor_names
        }
        for file in found.weight_files:
            assert file.stat().st_size == len(hub.repos["org/small"].files[file.name])
            assert file.stat().st_blocks * 512 < 1 << 20


def test_files_without_headers_say_so(hub: Hub, tmp_path: Path) -> None:
    place = Hubs(endpoint=hub.url, cache=str(tmp_path / "hub"))
    files = in_torch(hub.repos["org/small"].files, legacy=True)
    hub.repos["org/small"] = Repo(files)
    with pytest.raises(LoadError, match=r"-of-00002\.bin is no archive, .*: fetch it to plan it"):
        fetch_headers(WANTED, place, tmp_path / "headers")
    hub.repos["org/small"] = Repo({name: b"PK\3\4" + data for name, data in files.items()})
    with pytest.raises(LoadError, match="directory at the end of the archive is missing"):
        fetch_headers(WANTED, place, tmp_path / "headers")
