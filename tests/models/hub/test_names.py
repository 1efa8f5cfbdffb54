import re
from pathlib import Path

import pytest

from triolet.models.errors import LoadError
from triolet.models.hub.cache import cache_folder, cached_repos, snapshots
from triolet.models.hub.names import HubName, hub_name, local_model


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/2", HubName("org/name", "refs/pr/2")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("hf.co/org/name", HubName("org/name")),
        ("./org/name", None),
        ("../org/name", None),
        ("/org/name", None),
        ("~/name", None),
        ("name", None),
        ("a/b/c", None),
        ("org/name.gguf", None),
        ("org/name@", None),
        ("org/na me", None),
        ("org/na..me", None),
        ("org/.name", None),
        ("org/näme", None),
    ],
)
def test_what_is_a_name(text: str, meant: HubName | None) -> None:
    assert hub_name(text) == meant
    if meant is not None and not text.startswith(("http", "hf.co")):
        assert str(meant) == text


def test_a_path_that_exists_wins_over_a_name() -> None:
    Path("org/name").mkdir(parents=True)
    assert hub_name("org/name") is None
    assert hub_name("org/other") == HubName("org/other")


def test_a_path_becomes_a_folder_or_a_gguf_file() -> None:
    folder = Path("m")
    folder.mkdir()
    with pytest.raises(LoadError, match=r"^m has no config\.json and no \.gguf file: MODEL is a folder"):
        local_model("m")
    for name in ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-m.gguf"):
        (folder / name).write_bytes(b"GGUF")
    assert local_model("m/m-Q8_0.gguf") == folder / "m-Q8_0.gguf"
    with pytest.raises(LoadError, match=r"^m has several \.gguf files: choose with --gguf-file, .*m-Q8_0\.gguf \("):
        local_model("m")
    assert local_model("m", "q8_0") == folder / "m-Q8_0.gguf"
    assert local_model("m", "m-Q4_K_S.gguf") == folder / "m-Q4_K_S.gguf"
    with pytest.raises(LoadError, match="--gguf-file Q4_K: m has no such file, but m-Q4_K_M"):
        local_model("m", "Q4_K")
    (folder / "config.json").touch()
    assert local_model("m") == folder
    assert local_model("m", "Q8_0") == folder / "m-Q8_0.gguf"


def test_the_cache_is_found_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cached_repos() == []
    place = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B"
    for folder in ("refs/pr", "snapshots/aaa", "snapshots/bbb"):
        (place / folder).mkdir(parents=True)
    (place / "refs/main").write_text("aaa")
    (place / "refs/pr/2").write_text("bbb")
    (tmp_path / "hub" / "datasets--a--b").mkdir()
    assert cached_repos() == ["Qwen/Qwen3-0.6B"]
    assert [str(each) for each in snapshots()] == ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@pr/2"]
    for typed in ("Qwen3-0.6B", "Qwen/Qwen3-0,6B", "qwen3-0.6b"):
        with pytest.raises(LoadError, match=r"did you mean Qwen/Qwen3-0\.6B, which is in the cache\?$"):
            local_model(typed)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", "/there")
    assert cache_folder() == Path("/there/hub")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/here")
    assert cache_folder() == Path("/here/huggingface/hub")


def test_a_cache_is_no_model_and_the_message_names_what_is_in_it() -> None:
    snapshot = Path("models--a--b/snapshots/3f2a")
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    with pytest.raises(LoadError, match=re.escape(f"pass {snapshot}")):
        local_model("models--a--b")
