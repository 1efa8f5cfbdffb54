"""The hub's cache on this machine, read without the hub's library: where it is, what is in it.

`models--ORG--NAME/refs/BRANCH` holds a commit, `snapshots/COMMIT/` links to `blobs/`. The variables are the library's:
HF_HUB_CACHE, else HF_HOME with /hub, else XDG_CACHE_HOME with /huggingface/hub.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PREFIX: Final = "models--"


class Snapshot(NamedTuple):
    """One commit of a repository in the cache, with the branches and tags that meant it when they were fetched."""

    repo: str
    commit: str
    refs: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        """As it is named on the command line."""
        return self.repo if "main" in self.refs else f"{self.repo}@{self.refs[0] if self.refs else self.commit}"


def cache_folder() -> Path:
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return _expanded(given)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _expanded(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()


def cached_repos(folder: Path | None = None) -> list[str]:
    """ORG/NAME of every model that the cache holds anything of."""
    return [_repo(place) for place in _places(folder or cache_folder())]


def snapshots(folder: Path | None = None) -> Iterator[Snapshot]:
    """Every commit of every model in the cache, whole or not."""
    for place in _places(folder or cache_folder()):
        refs: dict[str, list[str]] = {}
        for ref in sorted((place / "refs").rglob("*")):
            if ref.is_file():
                refs.setdefault(ref.read_text().strip(), []).append(str(ref.relative_to(place / "refs")))
        for snapshot in sorted((place / "snapshots").glob("*")):
            if snapshot.is_dir():
                yield Snapshot(_repo(place), snapshot.name, tuple(refs.get(snapshot.name, ())), snapshot)


def _places(folder: Path) -> list[Path]:
    return [place for place in sorted(folder.glob(f"{_PREFIX}*--*")) if place.is_dir()]


def _repo(place: Path) -> str:
    return place.name.removeprefix(_PREFIX).replace("--", "/", 1)
