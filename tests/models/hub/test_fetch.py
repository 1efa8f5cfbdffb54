"""The real client against a hub in this process."""

import hashlib
import json
import shutil
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from triolet.models.errors import LoadError, UnsupportedModel
from triolet.models.hub.fetch import Hubs, fetch
from triolet.models.hub.names import HubName
from triolet.models.hub.order import Wanted

from .hub_server import Hub, Repo, running_hub

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
REPO = "org/small"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def running() -> Generator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(running: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))  # where nearest names are looked for
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=no_sleep))
    running.repos = {REPO: Repo(demo_files())}
    running.cuts, running.sent, running.status = {}, {}, None
    running.gets.clear()
    running.ranges.clear()
    return running


def demo_files() -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in DEMO.iterdir()}
    return {**files, "README.md": b"# A model", "original/consolidated.00.pth": b"\0" * 99, "model.fp32.bin": b"\0"}


@pytest.fixture
def place(hub: Hub, tmp_path: Path) -> Hubs:
    return Hubs(endpoint=hub.url, cache=str(tmp_path / "hub"))


def wanted(repo: str = REPO, revision: str | None = None, gguf_file: str | None = None) -> Wanted:
    return Wanted(HubName(repo, revision), gguf_file)


def no_sleep(seconds: float) -> None:
    """Before the library goes on with a cut download."""


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_model_is_fetched_once_and_then_read_from_the_cache(
    hub: Hub, place: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder = fetch(wanted(), place, said.append)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in DEMO.iterdir()
    }
    assert len(said) == 1
    assert said[0].startswith(f"fetching {REPO} from {hub.url}: 0.0")
    assert set(hub.gets.values()) == {1}
    assert fetch(wanted(), place, said.append) == folder
    assert fetch(wanted(revision=hub.repos[REPO].commit), place, said.append) == folder
    offline(monkeypatch)
    assert fetch(wanted(), place, said.append) == folder
    assert len(said) == 1
    assert set(hub.gets.values()) == {1}


def test_without_a_hub_the_cached_model_serves(hub: Hub, place: Hubs) -> None:
    folder = fetch(wanted(), place)
    hub.status = 503
    assert fetch(wanted(), place) == folder
    nowhere = Hubs(endpoint="http://127.0.0.1:9", cache=place.cache)
    assert fetch(wanted(), nowhere) == folder
    with pytest.raises(LoadError, match=r"^org/other is not in the cache, .*127\.0\.0\.1:9 cannot be reached \("):
        fetch(wanted("org/other"), nowhere)


def test_a_cut_connection_goes_on_where_it_was(hub: Hub, place: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what the library writes at once, and loses at most
    hub.cuts[WEIGHTS] = 5500
    folder = fetch(wanted(), place)
    assert hub.gets[WEIGHTS] == 2
    assert "bytes=5000-" in hub.ranges
    assert (folder / WEIGHTS).read_bytes() == hub.repos[REPO].files[WEIGHTS]


@pytest.mark.parametrize("end", [b"\xff" * 9, b""], ids=["digest", "size"])
@pytest.mark.parametrize("file", [WEIGHTS, "tokenizer.json"])
def test_damaged_files_are_removed_and_fetched_again(hub: Hub, place: Hubs, file: str, end: bytes) -> None:
    content = hub.repos[REPO].files[file]
    hub.sent[file] = content[:-9] + end
    with pytest.raises(LoadError, match=r"damaged: its digest is|damaged: it has|check failed"):
        fetch(wanted(), place)
    hub.sent.clear()
    assert (fetch(wanted(), place) / file).read_bytes() == content


def test_a_file_that_was_damaged_in_the_cache_is_noticed(hub: Hub, place: Hubs) -> None:
    folder = fetch(wanted(), place)
    blob = (folder / WEIGHTS).resolve()
    data = blob.read_bytes()
    for damaged, why in ((data[:-1], r"bytes, the hub says"), (data[:-1] + b"\xff", "its digest is")):
        blob.write_bytes(damaged)
        with pytest.raises(LoadError, match=rf"^model\.safetensors of org/small is damaged: .*{why}"):
            fetch(wanted(), place)
        assert not blob.exists()
        assert hashlib.sha256((fetch(wanted(), place) / WEIGHTS).read_bytes()).hexdigest() == blob.name


def test_what_the_decoder_does_not_implement_is_refused_before_its_weights_come(hub: Hub, place: Hubs) -> None:
    files = demo_files()
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | {"model_type": "t5"}).encode()
    hub.repos[REPO] = Repo(files)
    with pytest.raises(UnsupportedModel, match="t5"):
        fetch(wanted(), place)
    assert hub.gets[WEIGHTS] == 0


@pytest.mark.parametrize(
    ("token", "says"),
    [(None, "log in with `hf auth login`, or set HF_TOKEN"), ("hf_other", "the token in use has no access")],
)
def test_a_gated_model_says_how_to_get_in(
    hub: Hub, place: Hubs, monkeypatch: pytest.MonkeyPatch, token: str | None, says: str
) -> None:
    hub.repos[REPO].gated = True
    if token is not None:
        monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(LoadError, match=rf"^org/small is gated: accept its conditions at {hub.url}/org/small; {says}$"):
        fetch(wanted(), place)


def test_a_token_opens_a_gated_model(hub: Hub, place: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO].gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_allowed")
    assert (fetch(wanted(), place) / WEIGHTS).is_file()


def test_names_that_are_not_there(hub: Hub, place: Hubs) -> None:
    fetch(wanted(), place)
    with pytest.raises(LoadError, match=r"no folder org/smal here, and no model .*did you mean org/small, which is in"):
        fetch(wanted("org/smal"), place)
    with pytest.raises(LoadError, match=r"^org/small has no revision v2 on .*after @ comes a branch"):
        fetch(wanted(revision="v2"), place)
    hub.status = 429
    with pytest.raises(LoadError, match=r"answered 429 for org/other: try again later$"):
        fetch(wanted("org/other"), place)


def test_offline_and_not_in_the_cache(hub: Hub, place: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(wanted(), place)
    offline(monkeypatch)
    with pytest.raises(LoadError, match="HF_HUB_OFFLINE is set: unset it, or pass a folder; did you mean org/small"):
        fetch(wanted("org/smalll"), place)
    (folder / WEIGHTS).unlink()
    with pytest.raises(LoadError, match="or not all of it, and HF_HUB_OFFLINE is set"):
        fetch(wanted(), place)


def test_a_full_disk_is_told_before(hub: Hub, place: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly_full(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=1 << 20)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    with pytest.raises(LoadError, match=r"needs .* GB, and 0\.00 GB are free on the disk of .*set HF_HOME"):
        fetch(wanted(), place)
    assert not hub.gets


def test_one_gguf_file_is_fetched_with_all_its_parts(hub: Hub, place: Hubs) -> None:
    files = {f"big/m-Q8_0-0000{part}-of-00002.gguf": b"GGUF%d" % part for part in (1, 2)}
    hub.repos[REPO] = Repo({**files, "m-Q4_K_M.gguf": b"GGUF", "README.md": b""})
    with pytest.raises(
        LoadError, match=r"several \.gguf files: choose with --gguf-file, .*m-Q4_K_M\.gguf \(0\.00 GB\)"
    ):
        fetch(wanted(), place)
    assert fetch(wanted(gguf_file="Q4_K_M"), place).read_bytes() == b"GGUF"
    first = fetch(wanted(gguf_file="Q8_0"), place)
    assert [file.name for file in sorted(first.parent.iterdir())] == [name.rpartition("/")[2] for name in files]
    assert first.name.endswith("00001-of-00002.gguf")
    assert hub.gets["README.md"] == 0


def test_two_that_fetch_at_once_fetch_each_file_once(hub: Hub, place: Hubs) -> None:
    with ThreadPoolExecutor(2) as both:
        one, other = both.map(fetch, [wanted()] * 2, [place] * 2)
    assert one == other
    assert hub.gets[WEIGHTS] == 1
