"""Names on the command line, with the program that fetches, against a hub in this process."""

from collections.abc import Generator
from pathlib import Path

import pytest

from triolet.cli.names import with_local_models
from triolet.cli.options import BUNDLED_MODEL, build_settings
from triolet.cli.refusals import Refusal
from triolet.protocol.settings import EngineSettings, ModelSettings, ServeSettings, model_name

from ..models.hub.hub_server import Hub, Repo, running_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Hub]:
    with running_hub() as hub:
        hub.repos["org/small"] = Repo(
            {file.name: file.read_bytes() for file in BUNDLED_MODEL.iterdir()}, ("main", "v1")
        )
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
        monkeypatch.chdir(tmp_path)
        yield hub


def test_names_become_folders_of_the_cache(hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = {"a": "org/small", "b": str(BUNDLED_MODEL), "c": "org/small@v1"}
    models = tuple(ModelSettings(name=name, path=path) for name, path in given.items())
    found = with_local_models(ServeSettings(engine=EngineSettings(model="org/small"), models=models))
    place = tmp_path / "hf" / "hub" / "models--org--small" / "snapshots" / hub.repos["org/small"].commit
    assert [model.path for model in found.models] == [str(place), str(BUNDLED_MODEL), str(place)]
    assert found.engine.model == str(place)
    assert (place / "config.json").read_bytes() == (BUNDLED_MODEL / "config.json").read_bytes()
    assert capfd.readouterr().err.splitlines() == [
        f"  fetching org/small from {hub.url}: 0.01 GB, to {tmp_path / 'hf' / 'hub'}"
    ]


def test_what_cannot_be_fetched_is_refused(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refusal, match="no folder org/none here, and no model of this name on"):
        with_local_models(ServeSettings(engine=EngineSettings(model="org/none")))
    assert capfd.readouterr().err == ""


def test_a_name_is_the_name_in_the_api() -> None:
    assert model_name(build_settings("Qwen/Qwen3-0.6B@main", {})) == "Qwen/Qwen3-0.6B"
    assert model_name(build_settings("./Qwen/Qwen3-0.6B", {})) == "Qwen3-0.6B"
    assert model_name(build_settings("Qwen/Qwen3-0.6B", {"served_model_name": "chat"})) == "chat"
